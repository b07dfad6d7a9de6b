-- Stop the limiter's clock for exactly so long from now, whatever it was stopped for before; 0: let it go on.
-- KEYS, ARGV: see _rates.lua; 4 how long
-- Reply: how long it was to stand still until then
-- use: rates
local left = math.max(0, get('until') - time)
set('off', get('off') + amount - left)
set('until', time + amount)
if get('hz') < amount then set('hz', amount) end -- a stop longer than that is taken for a clock that was set back
finish()
return left
