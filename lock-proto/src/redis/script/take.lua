local function answer(...)
  if ARGV[5] then redis.pcall('SET', KEYS[#KEYS], '1', 'PX', ARGV[5]) end
  return {...}
end
local v = redis.pcall('GET', KEYS[1])
if type(v) == 'table' then return v end
local p
if v then
  p = redis.pcall('PTTL', KEYS[1])
  if type(p) == 'table' then return p end
  if v ~= ARGV[1] then
    local n = string.sub(v, 1, 33) == string.sub(ARGV[1], 1, 33) and tonumber(string.sub(v, 34))
    local a, b, c = string.match(ARGV[2], '(%d+) (%d+) (%d+)')
    if not n or not (n <= tonumber(a) or (n > tonumber(b) and n <= tonumber(c))) then
      local e = not ARGV[5] and redis.pcall('SET', KEYS[1], ARGV[1], 'NX', 'PX', 1)
      if e and e.err and string.find(e.err, 'READONLY', 1, true) then return e end
      return answer(0, p)
    end
  end
end
local first, count, ahead = 0, 1
if ARGV[4] and ARGV[4] ~= '0' then
local c = redis.pcall('GET', KEYS[2])
  if type(c) == 'table' then return c end
  if c and not (string.match(c, '^%d+$') and tonumber(c) < 9000000000000000) then
    return redis.error_reply('LOCKFENCE the fence counter holds no number, or one that leaves no room to count')
  end
  local t = redis.pcall('TIME')
  if t.err then return t end
  t = t[1] * 1000000 + t[2]
  c = tonumber(c or 0)
  if c > 0 then count = math.max(1, math.min(t - c, tonumber(ARGV[4]))) end
  first = math.max(c, t - count) + 1
  ahead = math.max(0, first + count - 1 - t)
  local e = redis.pcall('SET', KEYS[2], string.format('%.0f', first + count - 1))
  if e.err then return e end
end
if v ~= ARGV[1] then
  local e = redis.pcall('SET', KEYS[1], ARGV[1], 'PX', ARGV[3])
  if e.err then return e end
elseif p < tonumber(ARGV[3]) then
  local e = redis.pcall('PEXPIRE', KEYS[1], ARGV[3])
  if type(e) == 'table' then return e end
end
if ahead then return answer(1, first, count, ahead) end
return answer(1, 0)
