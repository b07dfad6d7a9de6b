-- Take a permit away from its member; the longest waiter gets it.
-- KEYS: see _permits.lua
-- ARGV: 1 token
-- Reply: nil if that token has none, else {ms left, value, now ms, number of waiters}
-- use: clock permits
local now = clock()
drop_expired(now)
local value = redis.call('HGET', KEYS[2], ARGV[1])
if not value then return false end
local reply = {redis.call('ZSCORE', KEYS[1], ARGV[1]) - now, value, now, redis.call('ZCARD', KEYS[4])}
remove_member(ARGV[1])
if redis.call('EXISTS', KEYS[4]) == 1 then
  -- use: fence waiters permit_grants
  grant_free(nil, 0)
end
forget_if_empty()
return reply
