-- Shared by the scripts of permits: they use clock, fence, counts and waiters as well. Not a verb.
--
-- Members are tokens, scored by the expiry of their leases; beside them, by token, what acquire.lua calls the value
-- of a lock, with "fence" as the order of the grants. Nothing expires by itself while somebody may have a permit:
-- what lapsed is dropped by whoever comes next.
-- Entry of a queue: "<token> <channel> <claim ms> <hold ms> <holder json> <limit>", scored by arrival.
-- KEYS of every script that grants: 1 members, 2 values, 3 fence counter, 4 queue, 5 limiters by their end, 6 seen
-- The limiter's name is what its first key has after the last "#permits:", as the clients make it.

local SPARE = 60000 -- ms that the keys outlive the last timeout

local function bare()
  return string.match(KEYS[1], '#permits:(.*)$')
end

local function drop(token)
  redis.call('ZREM', KEYS[1], token)
  redis.call('HDEL', KEYS[2], token)
end

local function kind_of(value)
  return value and string.match(value, '"holder":{"kind":"([^"]*)"')
end

-- To be called first.
local function lapse(now)
  count_at(KEYS[3], now)
  local gone = redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', now, 'LIMIT', 0, 1000)
  while gone[1] do
    for _, value in ipairs(redis.call('HMGET', KEYS[2], unpack(gone))) do
      local kind = kind_of(value)
      if kind then count('limit.expired', kind) end
    end
    redis.call('ZREM', KEYS[1], unpack(gone))
    redis.call('HDEL', KEYS[2], unpack(gone))
    gone = redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', now, 'LIMIT', 0, 1000)
  end
end

-- Let the keys live for `hold` ms, at least; their expiry is only for what nobody asks for again.
local function outlive(now, hold)
  hold = tonumber(hold) + SPARE
  if redis.call('PTTL', KEYS[1]) < hold then
    redis.call('PEXPIRE', KEYS[1], hold)
    redis.call('PEXPIRE', KEYS[2], hold)
    redis.call('ZADD', KEYS[5], now + hold, bare())
  end
end

-- `waited` in ms; nil: it was not waited for.
local function admit(fence, now, token, ttl, hold, holder, waited)
  redis.call('ZADD', KEYS[1], now + ttl, token)
  redis.call('HSET', KEYS[2], token, '{"token":"' .. token .. '","holder":' .. holder .. ',"at":' .. now ..
    ',"fence":' .. fence .. ',"until":' .. (now + hold) .. '}')
  outlive(now, hold)
  local kind = string.match(holder, '^{"kind":"([^"]*)"')
  if kind and waited then
    count_time('limit.waited', kind, waited)
  elseif kind then
    count('limit.granted', kind)
  end
  local number = tonumber(fence)
  if number % 64 == 0 then redis.call('ZREMRANGEBYSCORE', KEYS[5], '-inf', now) end
  return number
end

-- Give free permits to the longest waiters that are still connected: short claims, which their first renewals make
-- whole leases. Strictly in order: whoever is first holds up those behind, even if their limits are greater, unless
-- it is dead, which is asked for a caller with a limit of `wanted`.
-- Reply: the token of the caller if it is `self` and its turn, or nil; and the ms that it has waited.
local function serve(self, wanted)
  local now, micros = clock()
  while true do
    local head = redis.call('ZRANGE', KEYS[4], 0, 0, 'WITHSCORES')
    if not head[1] then return nil end
    local token, channel, claim, hold, holder, limit = string.match(head[1], '^(%S+) (%S+) (%d+) (%d+) (.*) (%d+)$')
    local taken = redis.call('ZCARD', KEYS[1])
    local waited = math.max(0, math.floor(now - tonumber(head[2]) / 1000))
    if not token then
      redis.call('ZREM', KEYS[4], head[1]) -- what cannot be read is nobody's place
    elseif taken >= tonumber(limit) then
      if token == self or taken >= (wanted or 0) then return nil end
      if tell(token, channel, '- 0', now) ~= false then return nil end
      quit(token, head[1])
    elseif token == self then
      quit(token, head[1])
      return token, waited
    else
      local fence = tick(micros)
      local there = tell(token, channel, token .. ' ' .. fence, now)
      if there == nil then return nil end -- the waiters look by themselves
      quit(token, head[1])
      if there then admit(fence, now, token, claim, hold, holder, waited) end
    end
  end
end

local function forget_if_empty()
  if redis.call('ZCARD', KEYS[1]) == 0 then redis.call('ZREM', KEYS[5], bare()) end
end
