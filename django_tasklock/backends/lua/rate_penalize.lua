-- Stop the limiter's clock; an existing stop is not shortened. If the limit is adaptive, lower it, at most once in its
-- shortest window.
-- KEYS, ARGV: see _rates.lua; 1 the longest stop, 4 how long, or with 'at' in 5: until when
-- Reply: {how long it is stopped from now, share}
-- use: rates
local wanted = math.min(string.sub(ARGV[5], 1, 2) == 'at' and amount or time + amount, time + cost)
local before = math.max(time, get('until'))
if wanted > before then
  set('off', get('off') + wanted - before)
  set('until', wanted)
end
if min_share > 0 and time >= get('changed') + adaptation_interval then
  set('share', math.max(min_share, math.floor(get('share') * 7 / 10)))
  set('changed', time)
  set('spent', 0)
end
finish()
return {math.max(0, get('until') - time), get('share')}
