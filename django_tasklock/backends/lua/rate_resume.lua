-- What of a slot: its turn (wait 0 or less), a better one, longer to wait; missed, or of another edition: a new one.
-- KEYS, ARGV: see _rates.lua; 1 cost, 2 slot, 3 edition, 4 how long it may take, 5 'spaced' or the leeway of
--       a new one in microseconds, or both
-- Reply: as of rate_reserve.lua
-- use: rates
return resume()
