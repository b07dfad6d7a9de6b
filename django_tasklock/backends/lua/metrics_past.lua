-- The past holds of a name.
-- KEYS: 1 list of holds
-- ARGV: 1 how many
-- Reply: each as JSON, the latest first
return redis.call('LRANGE', KEYS[1], 0, ARGV[1] - 1)
