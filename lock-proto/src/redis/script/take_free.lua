local call, K, A = redis.pcall, KEYS, ARGV
local n = #A - 2
local wanted, ttl = tonumber(A[n + 2]), A[n + 1]
local first, count, ahead = 0, 1, 0
if wanted > 0 then
  local c = call('GET', K[n + 1])
  if type(c) == 'table' then return c end
  if c and not (string.match(c, '^%d+$') and tonumber(c) < 9000000000000000) then
    return redis.error_reply('LOCKFENCE the fence counter holds no number, or one that leaves no room to count')
  end
  local t = call('TIME')
  if t.err then return t end
  t = t[1] * 1000000 + t[2]
  c = tonumber(c or 0)
  if c > 0 then count = math.max(1, math.floor(math.min(t - c, wanted) / n)) end
  first = math.max(c, t - math.min(count * n, wanted)) + 1
  local last = first + count * n - 1
  ahead = math.max(0, last - t)
  local e = call('SET', K[n + 1], string.format('%.0f', last))
  if e.err then return e end
end
local answers
for i = 1, n do
  local a = call('SET', K[i], A[i], 'NX', 'PX', ttl)
  if not a or a.err then
    if not a then
      a = call('GET', K[i])
      if type(a) ~= 'table' then a = call('PTTL', K[i]) end
    end
    if type(a) == 'table' then
      if i == 1 then return a end
      a = 'x'
    elseif n > 1 then
      a = string.format('%.0f', a)
    end
    if not answers then
      answers = {}
      for j = 1, i - 1 do answers[j] = 'g' end
    end
    answers[i] = a
  elseif answers then
    answers[i] = 'g'
  end
end
if not answers then return {1, first, count, ahead} end
if n == 1 then return {0, answers[1]} end
return string.format('%.0f %d %.0f ', first, count, ahead) .. table.concat(answers, ' ')
