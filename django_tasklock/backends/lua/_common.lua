-- Shared by the scripts that grant: put before them when they are loaded. Not a verb.
--
-- Value of a lock: {"token":"<32 hex>","holder":{...},"at":<ms>,"fence":<n>,"until":<ms>}, and before the fence
--                  "asked":<ms>, once somebody has asked the holder to give it back.
-- Entry of a queue: "<token> <channel> <claim ms> <hold ms> <holder json>", scored by arrival.
-- Seen: a hash by token, when its waiter last looked (ms); negative while nobody listens on its channel.
-- KEYS of every script that grants: 1 lock, 2 index by expiry, 3 fence counter, 4 queue, 5 index by acquisition,
--                                   6 index by the end of the timeout, the last: seen.

local SEEN = KEYS[#KEYS]
local FROZEN = 3000 -- ms: every live waiter looks in each second; as long as a claim, see Layout

local function owned(value, token)
  return string.sub(value, 11, 11 + #token) == token .. '"'
end

-- Whether a value was put there by other means: its token is '' to whoever looks.
local function foreign(value)
  return not string.find(value, '^{"token":"[^"]+"')
end

-- What a command says; of a key that is of another type: as if there were none.
local function unless_other(...)
  local reply = redis.pcall(...)
  if type(reply) ~= 'table' or not reply.err then return reply end
  if not string.find(reply.err, 'WRONGTYPE', 1, true) then error(reply.err, 0) end
  return false
end

-- A value for people to look at. Ours are a few hundred bytes; of a longer one its token is enough.
local function clipped(value)
  return value and string.sub(value, 1, 16384)
end

-- A server whose memory is full refuses a script its first write, unless that is one that needs no memory: so each
-- script that must go on begins with such a write, here one that does nothing. What a lock needs is little, and ends
-- by itself; and a full server would make every holder lose its lock, and every caller run without one.
local function even_if_full(set)
  redis.pcall('ZREM', set, '')
end

local function clock()
  local t = redis.call('TIME')
  return t[1] * 1000 + (t[2] - t[2] % 1000) / 1000, t
end

-- The clock in microseconds, or one more than before where that is greater: an older snapshot, or a flush, sets the
-- counter back but not the clock, and a clock that is set back finds the counter.
local function tick(t)
  local n = t[1] * 1e6 + t[2]
  local last = tonumber(redis.call('SET', KEYS[3], string.format('%.0f', n), 'GET'))
  if last and last >= n then
    n = last + 1
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

-- Take a place in the queue, or look from there. A place that was lost is taken at its old rank. Reply: the rank.
local function join(token, entry, rank, listens, now, t)
  rank = redis.call('ZSCORE', KEYS[4], entry) or (rank or '') ~= '' and rank or string.format('%.0f', tick(t))
  redis.call('ZADD', KEYS[4], rank, entry)
  redis.call('HSET', SEEN, token, string.format('%.0f', listens == '1' and now or -now))
  redis.call('PEXPIRE', KEYS[4], 30000)
  redis.call('PEXPIRE', SEEN, 30000)
  return tonumber(rank)
end

local function quit(token, entry)
  redis.call('ZREM', KEYS[4], entry)
  redis.call('HDEL', SEEN, token)
end

-- Say something to a waiter. Reply: whether it is there, or nil: we may not publish. Who has not looked for so long is
-- in a process that was stopped, all of whose waiters are passed over; one that goes on has its old rank back.
local function tell(token, channel, message, now)
  local seen = tonumber(redis.call('HGET', SEEN, token)) -- none: it waits by an earlier version
  if seen and now - math.abs(seen) >= FROZEN then return false end
  if seen and seen < 0 then return true end -- it looks by itself, soon
  local heard = redis.pcall('PUBLISH', channel, message)
  if type(heard) ~= 'number' then return nil end
  return heard > 0
end

-- Hand a free lock to the longest waiter that is still there: a short claim, which its
-- first renewal makes a whole lease. A waiter whose channel nobody hears is dead: next.
-- Reply: the token that has the lock now (`self` if that is the caller's turn), or nil.
local function pass_on(self)
  local now, t = clock()
  while true do
    local head = redis.call('ZPOPMIN', KEYS[4])
    if not head[1] then return nil end
    local token, channel, claim, hold, holder = string.match(head[1], '^(%S+) (%S+) (%d+) (%d+) (.*)$')
    if token then -- what cannot be read is nobody's place
      local fence = token ~= self and tick(t)
      local there = not fence or tell(token, channel, string.format('%s %.0f', token, fence), now)
      if there == nil then -- leave the lock free, the waiters look by themselves
        redis.call('ZADD', KEYS[4], head[2], head[1])
        return nil
      end
      redis.call('HDEL', SEEN, token)
      if fence and there then grant(fence, now, token, claim, hold, holder) end
      if there then return token end
    end
  end
end
