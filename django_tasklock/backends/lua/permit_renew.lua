-- Renew some leases, of any limiters; a lost permit is never created again. In a key of another type all are lost.
-- KEYS: the members of each permit's limiter
-- ARGV: token and ttl ms of each permit in turn
-- Reply: for each permit 1 renewed, 0 lost
-- use: values clock
local now = clock()
local reply = {}
for i = 1, #KEYS do
  local token, ttl = ARGV[2 * i - 1], ARGV[2 * i]
  local expiry = unless_other('ZSCORE', KEYS[i], token)
  if expiry and tonumber(expiry) > now then
    even_if_full(KEYS[i])
    redis.call('ZADD', KEYS[i], now + tonumber(ttl), token)
    reply[i] = 1
  else
    reply[i] = 0
  end
end
return reply
