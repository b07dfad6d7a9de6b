-- Release a permit, and grant free ones to the longest waiters. Waiters also leave the queue with it.
-- KEYS: see _permits.lua
-- ARGV: 1 token, 2 '1': leave the queue ('' or absent: it is not in the queue)
-- Reply: 1 released, 0 the token had none
-- use: clock permits
if ARGV[2] == '1' then
  -- use: waiters
  leave_queue(ARGV[1])
end
drop_expired((clock()))
local had = redis.call('ZREM', KEYS[1], ARGV[1])
redis.call('HDEL', KEYS[2], ARGV[1])
if redis.call('EXISTS', KEYS[4]) == 1 then
  -- use: fence waiters permit_grants
  grant_free(nil, 0)
end
forget_if_empty()
return had
