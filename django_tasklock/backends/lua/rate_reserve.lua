-- Book the first slot.
-- KEYS, ARGV: see _rates.lua; cost, longest wait, 1: at some distance from the others
-- Reply: {1, slot, wait, edition, off, time, whether it is in the line}; refused: {0, wait}
-- use: rates rate_change rate_first_slot rate_ahead rate_reserve
follow_raise(arguments[1])
local reply = reserve(unpack(arguments))
-- use: rate_write
return reply
