local ttl = ARGV[#ARGV]
local values = redis.pcall('MGET', unpack(KEYS))
if values.err then return values end
local answers, plain = {}, true
for i = 1, #KEYS do
  local a = 1
  if values[i] == ARGV[i] then
    local e = redis.pcall('PTTL', KEYS[i])
    if type(e) == 'number' and e < tonumber(ttl) then e = redis.pcall('PEXPIRE', KEYS[i], ttl) end
    if type(e) == 'table' then
      if i == 1 then return e end
      a = 'x'
    end
  elseif values[i] then
    a = -1
  else
    a = type(redis.pcall('GET', KEYS[i])) == 'table' and 'x' or 0
  end
  answers[i] = a
  plain = plain and a == 1
end
if plain then return 1 end
return table.concat(answers, ' ')
