local answers, plain = {}, true
for i = 1, #ARGV do
  local v, waiting = redis.pcall('GET', KEYS[i]), KEYS[#ARGV + i]
  local n = -2
  if v ~= ARGV[i] then
    n = type(v) == 'table' and v or v and -1 or 0
  else
    local e
    if waiting then e = redis.pcall('DEL', KEYS[i], waiting) else e = redis.pcall('DEL', KEYS[i]) end
    if e == 2 then
      n = -3
      local signal = KEYS[2 * #ARGV + i]
      if redis.pcall('EXISTS', signal) == 0 then
        redis.pcall('RPUSH', signal, '1')
        e = redis.pcall('PEXPIRE', signal, 2000)
        if type(e) == 'table' then redis.pcall('DEL', signal) end
      end
    elseif e ~= 1 then
      n = e
    end
  end
  if type(n) == 'table' then
    if i == 1 then return n end
    n = 'x'
  end
  answers[i] = n
  if n ~= -2 then plain = false end
end
if plain then return -2 end
return table.concat(answers, ' ')
