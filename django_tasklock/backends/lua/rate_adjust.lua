-- Set the current share of the limit.
-- KEYS, ARGV: see _rates.lua; 4 share, in millionths
-- Reply: 1
-- use: rates
set('share', amount)
set('changed', time)
set('spent', 0)
finish()
return 1
