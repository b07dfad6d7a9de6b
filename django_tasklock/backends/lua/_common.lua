-- Shared by the scripts that grant: put before them when they are loaded. Not a verb.
--
-- Value of a lock: {"token":"<32 hex>","holder":{...},"at":<ms>,"fence":<n>,"until":<ms>}, and before the fence
--                  "asked":<ms>, once somebody has asked the holder to give it back.
-- Entry of a queue: "<token> <channel> <claim ms> <hold ms> <holder json>", scored by arrival.
-- KEYS of every script that grants: 1 lock, 2 index by expiry, 3 fence counter, 4 queue, 5 index by acquisition,
--                                   6 index by the end of the timeout.

local function owned(value, token)
  return string.sub(value, 11, 11 + #token) == token .. '"'
end

-- Whether a value was put there by other means: its token is '' to whoever looks.
local function foreign(value)
  return not string.find(value, '^{"token":"[^"]+"')
end

local function clock()
  local t = redis.call('TIME')
  return t[1] * 1000 + (t[2] - t[2] % 1000) / 1000, t
end

-- Grows by one; after a loss of data it starts again from the clock in microseconds,
-- which is ahead of it unless more than a million were handed out every second.
local function tick(t)
  local n = redis.call('INCR', KEYS[3])
  if n < 1e15 then
    n = t[1] * 1e6 + t[2]
    redis.call('SET', KEYS[3], string.format('%.0f', n))
  end
  return n
end

local function forget(...)
  redis.call('ZREM', KEYS[2], ...)
  redis.call('ZREM', KEYS[5], ...)
  redis.call('ZREM', KEYS[6], ...)
end

local function grant(fence, now, token, ttl, hold, holder)
  -- Lua writes numbers with 14 digits: enough for milliseconds, not for the fence.
  redis.call('SET', KEYS[1], '{"token":"' .. token .. '","holder":' .. holder .. ',"at":' .. now ..
    ',"fence":' .. string.format('%.0f', fence) .. ',"until":' .. (now + hold) .. '}', 'PX', ttl)
  redis.call('ZADD', KEYS[2], now + ttl, KEYS[1])
  redis.call('ZADD', KEYS[5], now, KEYS[1])
  redis.call('ZADD', KEYS[6], now + hold, KEYS[1])
  if fence % 64 == 0 then -- forget what lapsed more than a day ago, a little at a time
    local old = redis.call('ZRANGEBYSCORE', KEYS[2], '-inf', now - 86400000, 'LIMIT', 0, 128)
    if old[1] then forget(unpack(old)) end
  end
  return fence
end

-- Hand a free lock to the longest waiter that is still connected: a short claim, which its
-- first renewal makes a whole lease. A waiter whose channel nobody hears is dead: next.
-- Reply: the token that has the lock now (`self` if that is the caller's turn), or nil.
local function pass_on(self)
  while true do
    local head = redis.call('ZPOPMIN', KEYS[4])
    if not head[1] then return nil end
    local token, channel, claim, hold, holder = string.match(head[1], '^(%S+) (%S+) (%d+) (%d+) (.*)$')
    if token == self then return token end
    local now, t = clock()
    local fence = tick(t)
    local heard = redis.pcall('PUBLISH', channel, string.format('%s %.0f', token, fence))
    if type(heard) ~= 'number' then -- may not publish: leave the lock free, the waiters look by themselves
      redis.call('ZADD', KEYS[4], head[2], head[1])
      return nil
    end
    if heard > 0 then
      grant(fence, now, token, claim, hold, holder)
      return token
    end
  end
end
