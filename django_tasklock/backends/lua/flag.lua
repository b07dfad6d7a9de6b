-- Set the flag that a message is parked for a lock, or clear it.
-- KEYS: 1 flag, 2 lock
-- ARGV: 1 its ttl in ms; 0: clear it
-- Reply: cleared: whether it was set (1, 0); set: whether the lock exists (1, 0)
if ARGV[1] == '0' then return redis.call('DEL', KEYS[1]) end
redis.call('DEL', KEYS[1]) -- see even_if_full
redis.call('SET', KEYS[1], '', 'PX', ARGV[1])
return redis.call('EXISTS', KEYS[2])
