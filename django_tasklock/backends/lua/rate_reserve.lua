-- Book the first slot for some units.
-- KEYS, ARGV: see _rates.lua; 1 cost, 4 the longest wait, 5 'soon' or 'spaced', and 'will_resume'
-- Reply, by spaces: 1, slot, wait, edition, off, time, rebuilt, leeway, in line; or refused: 0, wait, edition, off
-- use: rates
return reserve()
