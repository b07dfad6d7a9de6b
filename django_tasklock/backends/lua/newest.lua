-- Show a ticket; remember the greatest one.
-- KEYS: 1 the greatest so far
-- ARGV: 1 ticket, 2 ms to remember it for
-- Reply: 1 if no greater one has been shown, else 0
local last = tonumber(redis.call('GET', KEYS[1]) or 0)
if last > tonumber(ARGV[1]) then return 0 end
redis.call('DEL', KEYS[1]) -- see even_if_full
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
return 1
