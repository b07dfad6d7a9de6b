-- Book the first slot for some units.
-- KEYS, ARGV: see _rates.lua; 1 cost, 4 the longest wait, 5 'soon' or 'spaced', '+' if it is counted, and 'will_resume'
-- Reply, by spaces: 1, slot, wait, edition, off, time, rebuilt, leeway, in line; or refused: 0, wait, edition, off
-- use: rates
local reply = reserve()
-- use: rate_counts
count_reply(reply)
return reply
