-- Stop the limiter's clock for exactly so long from now, in place of any earlier stop; 0: start it again.
-- KEYS, ARGV: see _rates.lua; 4 how long
-- Reply: how long the earlier stop would have lasted from now
-- use: rates
local left = math.max(0, get('until') - time)
set('off', get('off') + amount - left)
set('until', time + amount)
if get('hz') < amount then set('hz', amount) end -- a longer stop would look like a clock that was set back
finish()
return left
