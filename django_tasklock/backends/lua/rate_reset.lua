-- Drop all usage, bookings, stops and the share; sleeping callers book again, because of the new edition.
-- KEYS, ARGV: see _rates.lua
-- Reply: the edition
-- use: rates
begin_edition(math.max(get('epoch') + 2, time), false)
finish()
return get('epoch')
