-- Let an empty instance vote, at once or later. "At once" comes from a client that has seen all instances empty, and
-- overrides one that has seen some of them admitted since.
-- KEYS: 1 marker
-- ARGV: 1 ms until it votes, 2 floor of its fences, 3... since when it was empty, by its own marker and other ones
-- Reply: marker
-- use: clock
local marker = redis.call('GET', KEYS[1]) or ''
for i = 3, #ARGV do
  if marker == ARGV[i] or ARGV[1] == '0' and string.sub(marker, -#ARGV[i] - 1) == ' ' .. ARGV[i] then
    local ends = ARGV[1] == '0' and '0' or string.format('%.0f', clock() + ARGV[1])
    marker = ends .. ' ' .. ARGV[2] .. ' ' .. ARGV[i]
    redis.call('SET', KEYS[1], marker)
    break
  end
end
return marker
