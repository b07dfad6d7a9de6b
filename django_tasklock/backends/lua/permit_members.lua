-- Who has a permit.
-- KEYS: 1 members, 2 values, 3 queue
-- Reply: {now ms, waiting, ms left, value, ms left, value, ...}
local now = clock()
local reply = {now, redis.call('ZCARD', KEYS[3])}
local live = redis.call('ZRANGEBYSCORE', KEYS[1], '(' .. string.format('%.0f', now), '+inf', 'WITHSCORES')
for i = 1, #live, 2 do
  reply[#reply + 1] = tonumber(live[i + 1]) - now
  reply[#reply + 1] = redis.call('HGET', KEYS[2], live[i]) or ''
end
return reply
