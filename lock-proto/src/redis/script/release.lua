local v = redis.pcall('GET', KEYS[1])
local n = -2
if v ~= ARGV[1] then
  if type(v) == 'table' then return v end
  if not v then return 0 end
  n = ARGV[2] and string.sub(v, 1, 33) == string.sub(ARGV[1], 1, 33) and tonumber(string.sub(v, 34))
  if not n then return -1 end
  local a, b, c = string.match(ARGV[2], '(%d+) (%d+) (%d+)')
  if not (n <= tonumber(a) or (n > tonumber(b) and n <= tonumber(c))) then return -1 end
end
local e
if KEYS[3] then
  e = redis.pcall('DEL', KEYS[1], KEYS[2])
else
  e = redis.pcall('DEL', KEYS[1])
end
if type(e) == 'table' then return e end
if e == 2 then
  if n == -2 then n = -3 end
  if redis.pcall('EXISTS', KEYS[3]) == 0 then
    redis.pcall('RPUSH', KEYS[3], '1')
    e = redis.pcall('PEXPIRE', KEYS[3], 2000)
    if type(e) == 'table' then redis.pcall('DEL', KEYS[3]) end
  end
end
return n
