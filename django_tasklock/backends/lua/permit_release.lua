-- Release a permit, and grant free ones to the longest waiters. Waiters also leave the queue with it.
-- KEYS: see _permits.lua
-- ARGV: 1 token, 2 queue entry to remove ('' or absent: none)
-- Reply: 1 released, 0 the token had none
-- use: clock fence counts waiters permits
if (ARGV[2] or '') ~= '' then leave_queue(ARGV[1], ARGV[2]) end
local now = clock()
drop_expired(now)
local value = redis.call('HGET', KEYS[2], ARGV[1])
local had = redis.call('ZREM', KEYS[1], ARGV[1])
redis.call('HDEL', KEYS[2], ARGV[1])
local kind = had == 1 and kind_of(value)
if kind then count_time('limit.released', kind, now - (string.match(value, '"at":(%d+),', -96) or now)) end
grant_free()
forget_if_empty()
return had
