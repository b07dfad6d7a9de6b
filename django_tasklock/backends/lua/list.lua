-- One page of held locks in order of expiry, read from the index.
-- KEYS: 1 index
-- ARGV: 1 'live' or 'lapsed', 2 offset, 3 limit, 4 key prefix, 5 queue prefix
-- Reply: {now ms, key, expiry ms, value or nil, waiting, key, ...}
local now = clock()
local low, high = '(' .. string.format('%.0f', now), '+inf'
if ARGV[1] == 'lapsed' then low, high = '-inf', string.format('%.0f', now) end
local reply, page, healed
repeat
  reply, healed = {now}, false
  page = redis.call('ZRANGEBYSCORE', KEYS[1], low, high, 'WITHSCORES', 'LIMIT', ARGV[2], ARGV[3])
  for i = 1, #page, 2 do
    local key = page[i]
    local value = redis.pcall('GET', key)
    if type(value) == 'table' then value = '' end -- not a text: not our value, and no reason to show nothing
    if not value and ARGV[1] == 'live' then -- deleted by hand or evicted: forget it, read the page again
      redis.call('ZREM', KEYS[1], key)
      healed = true
    end
    reply[#reply + 1] = key
    reply[#reply + 1] = page[i + 1]
    reply[#reply + 1] = value
    reply[#reply + 1] = redis.call('ZCARD', ARGV[5] .. string.sub(key, #ARGV[4] + 1))
  end
until not healed
return reply
