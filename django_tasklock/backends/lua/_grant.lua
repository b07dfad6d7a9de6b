-- Grant the lock. Reply: the fence, as a number. `waited`: ms; nil: it has not; -1: it follows an earlier hold.
-- KEYS: 1 lock, 2 index by expiry
local function grant(fence, now, token, ttl, hold, holder, waited)
  local value = '{"token":"' .. token .. '","holder":' .. holder .. ',"at":' .. now ..
    ',"fence":' .. fence .. ',"until":' .. (now + hold) .. '}'
  redis.call('SET', KEYS[1], value, 'PX', ttl)
  redis.call('ZADD', KEYS[2], now + ttl, KEYS[1])
  local kind = string.match(holder, '^{"kind":"([^"]*)"')
  if kind then count_grant(name_of(KEYS[1]), value, kind, waited) end
  local number = tonumber(fence)
  if number % 64 == 0 then
    -- use: lapsed
    forget_lapsed(KEYS[2], now)
  end
  return number
end

-- The ms that a waiter has waited, by its rank, which is its arrival in microseconds; nil without a rank.
local function waited_since(rank, now)
  return rank and math.max(0, math.floor(now - tonumber(rank) / 1000)) or nil
end
