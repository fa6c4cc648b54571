local n, wanted = #ARGV - 2, tonumber(ARGV[#ARGV])
local first, count, ahead = 0, 1, 0
if wanted > 0 then
  local c = redis.pcall('GET', KEYS[n + 1])
  if type(c) == 'table' then return c end
  if c and not (string.match(c, '^%d+$') and tonumber(c) < 9000000000000000) then
    return redis.error_reply('LOCKFENCE the fence counter holds no number, or one that leaves no room to count')
  end
  local t = redis.pcall('TIME')
  if t.err then return t end
  t = t[1] * 1000000 + t[2]
  c = tonumber(c or 0)
  if c > 0 then count = math.max(1, math.min(math.floor((t - c) / n), wanted)) end
  first = math.max(c, t - count * n) + 1
  local last = first + count * n - 1
  ahead = math.max(0, last - t)
  local e = redis.pcall('SET', KEYS[n + 1], string.format('%.0f', last))
  if e.err then return e end
end
local answers, free = {}, true
for i = 1, n do
  local a = redis.pcall('SET', KEYS[i], ARGV[i], 'NX', 'PX', ARGV[n + 1])
  if not a then
    a = redis.pcall('GET', KEYS[i])
    if type(a) ~= 'table' then a = redis.pcall('PTTL', KEYS[i]) end
  elseif a.ok then
    a = 'g'
  end
  if type(a) == 'table' then
    if i == 1 then return a end
    a = 'x'
  end
  answers[i] = a
  free = free and a == 'g'
end
if free then return {1, first, count, ahead} end
if n == 1 then return {0, answers[1]} end
return string.format('%.0f %d %.0f ', first, count, ahead) .. table.concat(answers, ' ')
