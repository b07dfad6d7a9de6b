-- Stop the limiter's clock in place of any other stop.
-- KEYS, ARGV: see _rates.lua; how long; 0: start it
-- Reply: 1
-- use: rates rate_change
local length = arguments[1]
set('off', get('off') + length - math.max(0, get('until') - time))
set('until', time + length)
-- use: rate_write
return 1
