local e = redis.pcall('EXISTS', KEYS[1])
if type(e) == 'table' then return e end
if e == 0 then
  e = redis.pcall('RPUSH', KEYS[1], '1')
  if type(e) == 'table' then return e end
  e = redis.pcall('PEXPIRE', KEYS[1], 2000)
  if type(e) == 'table' then redis.pcall('DEL', KEYS[1]) end
end
return 1
