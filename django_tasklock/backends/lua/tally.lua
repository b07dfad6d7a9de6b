-- Add to a counter, or read it.
-- KEYS: 1 counter
-- ARGV: 1 the number to add (0: none), 2 its ttl in ms
-- Reply: the counter
local number = tonumber(redis.call('GET', KEYS[1]) or 0) + ARGV[1]
if ARGV[1] == '0' then return number end
redis.call('DEL', KEYS[1]) -- see even_if_full
redis.call('SET', KEYS[1], number, 'PX', ARGV[2])
return number
