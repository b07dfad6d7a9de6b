-- Take the lock away from its holder; the longest waiter gets it.
-- KEYS: 1 lock, 2 index, 3 fence counter, 4 queue
-- ARGV: 1 the token it must have ('' or absent: any)
-- Reply: nil when nothing was removed, else {ms left (-1: no expiry), value, now ms, waiting}
local value = redis.call('GET', KEYS[1])
if not value then
  redis.call('ZREM', KEYS[2], KEYS[1])
  return false
end
if ARGV[1] and ARGV[1] ~= '' and not owned(value, ARGV[1]) then return false end
local now = clock()
local reply = {redis.call('PTTL', KEYS[1]), value, now, redis.call('ZCARD', KEYS[4])}
redis.call('DEL', KEYS[1])
if not pass_on(KEYS[1], KEYS[2], KEYS[3], KEYS[4]) then redis.call('ZREM', KEYS[2], KEYS[1]) end
return reply
