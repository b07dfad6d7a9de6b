-- The state of a slot: due (wait 0 or less), exchanged for an earlier one, or to be waited for longer; a new one if it
-- was missed or belongs to another edition.
-- KEYS, ARGV: see _rates.lua; 1 cost, 2 slot, 3 edition, 4 the longest wait, 5 'spaced' or the leeway of a new slot in
--       microseconds, or both
-- Reply: as of rate_reserve.lua
-- use: rates
return resume()
