-- Stop the limiter's clock, and lower an adaptive limit.
-- KEYS, ARGV: see _rates.lua; how long, 1: until that time, longest stop
-- Reply: {how long it is stopped from now, share}
-- use: rates rate_change
local amount, absolute, max_length = unpack(arguments)
local wanted = math.min(absolute == 1 and amount or time + amount, time + max_length)
local before = math.max(time, get('until'))
if wanted > before then
  set('off', get('off') + wanted - before)
  set('until', wanted)
end
if min_share > 0 and time >= get('changed') + adaptation_interval then
  adjust(math.max(min_share, math.floor(get('share') * 7 / 10)))
end
local reply = {math.max(0, get('until') - time), get('share')}
-- use: rate_write
return reply
