local n = #ARGV
local values = redis.pcall('MGET', unpack(KEYS, 1, math.min(#KEYS, 2 * n)))
if values.err then return values end
local answers, gone, signals, plain = {}, {}, {}, true
for i = 1, n do
  local a = 0
  if values[i] == ARGV[i] then
    gone[#gone + 1] = KEYS[i]
    a = values[n + i] and -3 or -2
  elseif values[i] then
    a = -1
  elseif type(redis.pcall('GET', KEYS[i])) == 'table' then
    a = 'x'
  end
  if values[n + i] and a ~= 'x' then
    gone[#gone + 1] = KEYS[n + i]
    signals[#signals + 1] = KEYS[2 * n + i]
  end
  answers[i] = a
  plain = plain and a == -2
end
if gone[1] then
  local e = redis.pcall('DEL', unpack(gone))
  if type(e) == 'table' then return e end
end
for _, signal in ipairs(signals) do
  if redis.pcall('EXISTS', signal) == 0 then
    redis.pcall('RPUSH', signal, '1')
    local e = redis.pcall('PEXPIRE', signal, 2000)
    if type(e) == 'table' then redis.pcall('DEL', signal) end
  end
end
if plain then return -2 end
return table.concat(answers, ' ')
