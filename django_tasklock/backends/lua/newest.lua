-- Record a sequence number, if it is the greatest.
-- KEYS: 1 the greatest so far
-- ARGV: 1 sequence number, 2 its ttl in ms
-- Reply: 1 if none greater was recorded, else 0
local last = tonumber(redis.call('GET', KEYS[1]) or 0)
if last > tonumber(ARGV[1]) then return 0 end
redis.call('DEL', KEYS[1]) -- see even_if_full
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
return 1
