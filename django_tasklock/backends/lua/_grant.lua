-- Grant the lock. Reply: the fence, as a number.
-- KEYS: 1 lock, 2 index by expiry
local function grant(fence, now, token, ttl, hold, holder)
  local value = '{"token":"' .. token .. '","holder":' .. holder .. ',"at":' .. now ..
    ',"fence":' .. fence .. ',"until":' .. (now + hold) .. '}'
  redis.call('SET', KEYS[1], value, 'PX', ttl)
  redis.call('ZADD', KEYS[2], now + ttl, KEYS[1])
  local number = tonumber(fence)
  if number % 64 == 0 then
    -- use: lapsed
    forget_lapsed(KEYS[2], now)
  end
  return number
end
