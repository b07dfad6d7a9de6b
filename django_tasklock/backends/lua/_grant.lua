-- Grant the lock, if its key is free.
-- KEYS: 1 lock, 2 index by expiry
-- Reply: the fence, as a number; nil: something else was stored under the key
local function grant(fence, now, token, ttl, hold, holder)
  local value = '{"token":"' .. token .. '","holder":' .. holder .. ',"at":' .. now ..
    ',"fence":' .. fence .. ',"until":' .. (now + hold) .. '}'
  if not redis.call('SET', KEYS[1], value, 'NX', 'PX', ttl) then return nil end
  local number = tonumber(fence)
  if number % 64 == 0 then
    -- use: lapsed
    forget_lapsed(KEYS[2], now)
  end
  return number
end

