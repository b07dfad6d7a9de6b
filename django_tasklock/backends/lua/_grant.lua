-- Make the lock somebody's. Reply: the fence, as a number.
-- KEYS: 1 lock, 2 index by expiry
local function grant(fence, now, token, ttl, hold, holder)
  redis.call('SET', KEYS[1], '{"token":"' .. token .. '","holder":' .. holder .. ',"at":' .. now ..
    ',"fence":' .. fence .. ',"until":' .. (now + hold) .. '}', 'PX', ttl)
  redis.call('ZADD', KEYS[2], now + ttl, KEYS[1])
  local number = tonumber(fence)
  if number % 64 == 0 then -- forget what lapsed more than a day ago, a little at a time
    local old = redis.call('ZRANGEBYSCORE', KEYS[2], '-inf', now - 86400000, 'LIMIT', 0, 128)
    if old[1] then redis.call('ZREM', KEYS[2], unpack(old)) end
    -- use: former
    let_lapse(KEYS[2])
  end
  return number
end

