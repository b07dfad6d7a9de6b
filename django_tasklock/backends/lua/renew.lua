-- Renew some leases; a lost lock is never created again. A key of another type counts as lost, such an index is ignored.
-- KEYS: 1 index by expiry, 2... locks
-- ARGV: token and ttl ms of each lock in turn
-- Reply: for each lock 2 renewed and its release is requested, 1 renewed, 0 lost
-- use: values clock
local now = clock()
local reply = {}
for i = 2, #KEYS do
  local token, ttl = ARGV[2 * i - 3], ARGV[2 * i - 2]
  local value = unless_other('GET', KEYS[i])
  if value and owned(value, token) then
    redis.call('PEXPIRE', KEYS[i], ttl)
    redis.pcall('ZADD', KEYS[1], now + tonumber(ttl), KEYS[i])
    reply[i - 1] = string.find(value, '"asked":%d+,"fence":%d+,"until":%d+}$') and 2 or 1
  else
    reply[i - 1] = 0
  end
end
return reply
