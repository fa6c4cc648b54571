local v = redis.pcall('GET', KEYS[1])
if type(v) == 'table' then return v end
if not v then return 0 end
if v ~= ARGV[1] then return -1 end
local p = redis.pcall('PTTL', KEYS[1])
if type(p) == 'table' then return p end
local first, count, ahead = 0, 1
if ARGV[3] then
local c = redis.pcall('GET', KEYS[2])
  if type(c) == 'table' then return c end
  if c and not (string.match(c, '^%d+$') and tonumber(c) < 9000000000000000) then
    return redis.error_reply('LOCKFENCE the fence counter holds no number, or one that leaves no room to count')
  end
  local t = redis.pcall('TIME')
  if t.err then return t end
  t = t[1] * 1000000 + t[2]
  c = tonumber(c or 0)
  if c > 0 then count = math.max(1, math.min(t - c, tonumber(ARGV[3]))) end
  first = math.max(c, t - count) + 1
  ahead = math.max(0, first + count - 1 - t)
  local e = redis.pcall('SET', KEYS[2], string.format('%.0f', first + count - 1))
  if e.err then return e end
end
if p < tonumber(ARGV[2]) then
  local e = redis.pcall('PEXPIRE', KEYS[1], ARGV[2])
  if type(e) == 'table' then return e end
end
if ahead then return {1, first, count, ahead} end
return 1
