-- Drop all usage and bookings.
-- KEYS, ARGV: see _rates.lua; none
-- Reply: 1
-- use: rates rate_change
begin_edition(math.max(get('epoch') + get('serial') + 1, time))
redis.call('DEL', FREE, LINE, unpack(KEYS, 6))
redis.call('DEL', KEYS[1])
-- use: rate_write
return 1
