local v = redis.pcall('GET', KEYS[1])
if type(v) == 'table' then return v end
local mine = v == ARGV[1]
local n = mine and -2 or v and -1 or 0
if n == -1 and ARGV[2] and string.sub(v, 1, 33) == string.sub(ARGV[1], 1, 33) then
  local m = tonumber(string.sub(v, 34))
  local a, b, c = string.match(ARGV[2], '(%d+) (%d+) (%d+)')
  mine = m and (m <= tonumber(a) or (m > tonumber(b) and m <= tonumber(c)))
  if mine then n = m end
end
local e
if mine and KEYS[3] then
  e = redis.pcall('DEL', KEYS[1], KEYS[2])
elseif mine then
  e = redis.pcall('DEL', KEYS[1])
elseif KEYS[3] then
  e = redis.pcall('DEL', KEYS[2])
else
  e = n == 0 and redis.pcall('DEL', KEYS[1])
  if type(e) == 'table' and string.find(e.err, 'READONLY', 1, true) then return e end
  return n
end
if type(e) == 'table' then return e end
if e > (mine and 1 or 0) then
  if n == -2 then n = -3 end
  if redis.pcall('EXISTS', KEYS[3]) == 0 then
    redis.pcall('RPUSH', KEYS[3], '1')
    e = redis.pcall('PEXPIRE', KEYS[3], 2000)
    if type(e) == 'table' then redis.pcall('DEL', KEYS[3]) end
  end
end
return n
