-- Limiters, or the tenants of one, by their last use, the latest first.
-- KEYS: 1 index
-- ARGV: 1 rank of the last one to return
-- Reply: names
return redis.call('ZREVRANGE', KEYS[1], 0, ARGV[1])
