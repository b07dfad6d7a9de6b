-- Book several slots at some distance from each other, up to the first refusal.
-- KEYS, ARGV: see _rates.lua; cost, longest wait, how many
-- Reply: a list of the replies of rate_reserve.lua
-- use: rates rate_change rate_first_slot rate_ahead rate_reserve
local cost, max_wait, number = unpack(arguments)
local reply = {}
follow_raise(cost)
repeat reply[#reply + 1] = reserve(cost, max_wait, 1) until #reply == number or reply[#reply][1] == 0
-- use: rate_write
return reply
