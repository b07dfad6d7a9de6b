-- Note that something waits for a lock elsewhere, or take that note away.
-- KEYS: 1 flag, 2 lock
-- ARGV: 1 ms to keep it for; 0: take it away
-- Reply: when it is taken away, whether it was there (1, 0), else whether the lock exists (1, 0)
if ARGV[1] == '0' then return redis.call('DEL', KEYS[1]) end
redis.call('DEL', KEYS[1]) -- see even_if_full
redis.call('SET', KEYS[1], '', 'PX', ARGV[1])
return redis.call('EXISTS', KEYS[2])
