local call, K, A = redis.pcall, KEYS, ARGV
local n = #A
local values = call('MGET', unpack(K, 1, math.min(#K, 2 * n)))
if values.err then return values end
local plain = true
for i = 1, n do
  if values[i] ~= A[i] or values[n + i] then
    plain = false
    break
  end
end
if plain then
  local e = call('DEL', unpack(K, 1, n))
  if type(e) == 'table' then return e end
  return -2
end
local answers, gone, signals = {}, {}, {}
for i = 1, n do
  local a = 0
  if values[i] == A[i] then
    gone[#gone + 1] = K[i]
    a = values[n + i] and -3 or -2
  elseif values[i] then
    a = -1
  elseif type(call('GET', K[i])) == 'table' then
    a = 'x'
  else
    gone[#gone + 1] = K[i]
  end
  if values[n + i] and a ~= 'x' then
    gone[#gone + 1] = K[n + i]
    signals[#signals + 1] = K[2 * n + i]
  end
  answers[i] = a
end
if gone[1] then
  local e = call('DEL', unpack(gone))
  if type(e) == 'table' then return e end
end
for _, signal in ipairs(signals) do
  if call('EXISTS', signal) == 0 then
    call('RPUSH', signal, '1')
    local e = call('PEXPIRE', signal, 2000)
    if type(e) == 'table' then call('DEL', signal) end
  end
end
return table.concat(answers, ' ')
