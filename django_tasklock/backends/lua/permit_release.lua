-- Release a permit, and grant free ones to the longest waiters. Waiters also leave the queue with it.
-- KEYS: see _permits.lua
-- ARGV: 1 token, 2 queue entry to remove ('' or absent: none)
-- Reply: 1 released, 0 the token had none
-- use: clock fence waiters permits
if (ARGV[2] or '') ~= '' then leave_queue(ARGV[1], ARGV[2]) end
drop_expired((clock()))
local had = redis.call('ZREM', KEYS[1], ARGV[1])
redis.call('HDEL', KEYS[2], ARGV[1])
grant_free()
forget_if_empty()
return had
