-- The members of a limiter.
-- KEYS: 1 members, 2 values, 3 queue
-- Reply: {now ms, number of waiters, ms left, value, ms left, value, ...}
-- use: clock
local now = clock()
local waiting = redis.pcall('ZCARD', KEYS[3])
local reply = {now, type(waiting) == 'table' and 0 or waiting}
local live = redis.pcall('ZRANGEBYSCORE', KEYS[1], '(' .. string.format('%.0f', now), '+inf', 'WITHSCORES')
if live.err then return reply end -- of another type: not ours
for i = 1, #live, 2 do
  reply[#reply + 1] = tonumber(live[i + 1]) - now
  local value = redis.pcall('HGET', KEYS[2], live[i])
  reply[#reply + 1] = type(value) == 'string' and string.sub(value, 1, 16384) or ''
end
return reply
