-- Shared by the scripts of permits, which also use clock. Not an operation.
--
-- Members are tokens, scored by the expiry of their leases; a hash has by token the same value as a lock (acquire.lua),
-- with "fence" as the order of the grants. No key expires while a member may have a permit: expired members are removed
-- by the next script that runs.
-- KEYS of the scripts that can grant: 1 members, 2 values, 3 fence counter, 4 queue, 5 limiters by their end, 6 waiters
-- KEYS[1] is KEYS[5], a colon and the limiter's name.

local SPARE = 60000 -- ms for which the keys outlive the last timeout

local function limiter_name()
  return string.sub(KEYS[1], #KEYS[5] + 2)
end

local function remove_member(token)
  redis.call('ZREM', KEYS[1], token)
  redis.call('HDEL', KEYS[2], token)
end

-- Remove the members whose lease has run out. To be called first. Reply: how many.
local function drop_expired(now)
  local number = 0
  local gone = redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', now, 'LIMIT', 0, 1000)
  while gone[1] do
    number = number + #gone
    redis.call('ZREM', KEYS[1], unpack(gone))
    redis.call('HDEL', KEYS[2], unpack(gone))
    gone = redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', now, 'LIMIT', 0, 1000)
  end
  return number
end

-- Let the keys live for at least `hold` ms; their expiry is only for limiters that are not used again.
local function extend_keys(now, hold)
  hold = tonumber(hold) + SPARE
  if redis.call('PTTL', KEYS[1]) < hold then
    redis.call('PEXPIRE', KEYS[1], hold)
    redis.call('PEXPIRE', KEYS[2], hold)
    redis.call('ZADD', KEYS[5], now + hold, limiter_name())
  end
end

-- Grant a permit. Reply: the fence, as a number.
local function admit(fence, now, token, ttl, hold, holder)
  redis.call('ZADD', KEYS[1], now + ttl, token)
  redis.call('HSET', KEYS[2], token, '{"token":"' .. token .. '","holder":' .. holder .. ',"at":' .. now ..
    ',"fence":' .. fence .. ',"until":' .. (now + hold) .. '}')
  extend_keys(now, hold)
  local number = tonumber(fence)
  if number % 64 == 0 then redis.call('ZREMRANGEBYSCORE', KEYS[5], '-inf', now) end
  return number
end

local function forget_if_empty()
  if redis.call('ZCARD', KEYS[1]) == 0 then redis.call('ZREM', KEYS[5], limiter_name()) end
end
