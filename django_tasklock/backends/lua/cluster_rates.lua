-- Limiters by the time of their last use, the latest first.
-- KEYS: 1 index of limiters
-- ARGV: 1 rank of the last one to return
-- Reply: name, time, name, time, ...
return redis.call('ZREVRANGE', KEYS[1], 0, ARGV[1], 'WITHSCORES')
