-- Release the lock and hand it to the longest waiter. Waiters also leave the queue with it.
-- KEYS: as in acquire.lua
-- ARGV: 1 token, 2 '1': leave the queue ('' or absent: it is not in the queue)
-- Reply: 1 released, 0 the lock is free, -1 held by another token
-- use: clock fence values waiters grant pass_on
local token = ARGV[1]
local value = redis.call('GET', KEYS[1])
if ARGV[2] == '1' then leave_queue(token) end
if not value or not owned(value, token) then
  redis.call('HDEL', WAITERS, token) -- if it is in the queue nevertheless, it is skipped now
  return value and -1 or 0
end
redis.call('DEL', KEYS[1])
if not pass_on() then redis.call('ZREM', KEYS[2], KEYS[1]) end
return 1
