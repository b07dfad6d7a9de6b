-- The limiters that may have members.
-- KEYS: 1 limiters by their end
-- ARGV: 1 prefix of the keys of members, 2 how many at most
-- Reply: their names
-- use: clock
local now = clock()
local live = '(' .. string.format('%.0f', now)
local found = {}
for _, name in ipairs(redis.call('ZRANGEBYSCORE', KEYS[1], live, '+inf', 'LIMIT', 0, ARGV[2])) do
  local members = redis.pcall('ZCOUNT', ARGV[1] .. name, live, '+inf')
  if type(members) == 'table' then -- of another type: not ours
    members = 0
  end
  if members > 0 then
    found[#found + 1] = name
  else
    redis.call('ZREM', KEYS[1], name)
  end
end
return found
