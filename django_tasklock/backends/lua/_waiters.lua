-- The queue of a lock, or of a limiter.
-- Entry: "<token> <channel> <ttl ms> <hold ms> <holder json>", scored by arrival.
-- Seen: a hash by token, when the waiter last polled (ms); negative while it is not subscribed to its channel. In a
-- Redis Cluster, where channels have a hash tag, also the node where it was subscribed then: "<ms> <node>".
-- KEYS: 3 fence counter, 4 queue, the last: seen

local SEEN = KEYS[#KEYS]
local FROZEN = 3000 -- ms: every live waiter polls once a second; as HANDOVER_TTL in keys.py, the lease of a lock that was handed over

-- The number of subscribers of a channel at this node, and the node's id; nil outside of a cluster. In a cluster a
-- publish also reaches subscribers at other nodes, which must not get a grant of this node.
local function listeners(channel)
  if not string.find(channel, '{', 1, true) then return nil end
  local said, node = redis.pcall('PUBSUB', 'NUMSUB', channel), redis.pcall('CLUSTER', 'MYID')
  if type(node) ~= 'string' or said.err then return nil end
  return said[2], node
end

-- Join the queue, or poll from there. An entry that was removed gets its old rank again. Reply: the rank.
local function join_queue(token, entry, rank, listens, now, micros)
  rank = redis.call('ZSCORE', KEYS[4], entry) or (rank or '') ~= '' and rank or tick(micros)
  local number, node = listeners(string.match(entry, '^%S+ (%S+)') or ' ')
  local there = listens == '1' and number ~= 0
  redis.call('ZADD', KEYS[4], rank, entry)
  redis.call('HSET', SEEN, token, string.format('%.0f', there and now or -now) .. (node and ' ' .. node or ''))
  redis.call('PEXPIRE', KEYS[4], 30000)
  redis.call('PEXPIRE', SEEN, 30000)
  return tonumber(rank)
end

local function leave_queue(token, entry)
  redis.call('ZREM', KEYS[4], entry)
  redis.call('HDEL', SEEN, token)
end

-- Publish a message to a waiter. Reply: whether it is alive, or nil: this user may not publish. A waiter that has not
-- polled for FROZEN is in a stopped process, all of whose waiters are passed over; if it continues, it gets its old
-- rank again. One that was subscribed at another node, before the slot was moved here, will poll here soon.
local function notify(token, channel, message, now)
  local noted = redis.call('HGET', SEEN, token)
  local seen = noted and tonumber(string.match(noted, '^%S+'))
  if not seen then return false end -- it gave up its token, see release.lua
  if now - math.abs(seen) >= FROZEN then return false end
  if seen < 0 then return true end -- it will poll soon
  local number, node = listeners(channel)
  if number == 0 then return string.match(noted, ' (%S+)$') ~= node end
  local heard = redis.pcall('PUBLISH', channel, message)
  if type(heard) ~= 'number' then return nil end
  return heard > 0
end
