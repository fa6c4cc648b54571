local token, seen = ARGV[1], redis.call('GET', KEYS[1]) or '0'
if not (string.match(token, '^%d+$') and string.match(seen, '^%d+$')) then
  return redis.error_reply('FENCE the token, or the value of its key, is no decimal number')
end
if #token < #seen or (#token == #seen and token < seen) then return {0, seen} end
if token ~= seen then redis.call('SET', KEYS[1], token) end
return {1, redis.call(unpack(ARGV, 2))}
