-- Set the share of the limit.
-- KEYS, ARGV: see _rates.lua; share, in millionths
-- Reply: 1
-- use: rates rate_change
adjust(arguments[1])
-- use: rate_write
return 1
