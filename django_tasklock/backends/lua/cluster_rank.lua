-- The number of locks of a state before one lock in the index of a bucket.
-- KEYS: 1 index by expiry
-- ARGV: 1 lower bound of the scores, 2 key of the lock
-- Reply: a number; nil if it is not there
local rank = redis.call('ZRANK', KEYS[1], ARGV[2])
if not rank then return false end
local low = string.match(ARGV[1], '^%((.*)$')
return low and rank - redis.call('ZCOUNT', KEYS[1], '-inf', low) or rank
