-- The waiters for a lock, or for a permit of a limiter, the longest first.
-- KEYS: 1 queue, 2 waiters, as in _waiters.lua
-- ARGV: 1 how many to return at most
-- Reply: {now ms, number of waiters, arrival in microseconds, what is stored of the waiter or nil, ...}
-- use: clock
local now = clock()
local number = redis.pcall('ZCARD', KEYS[1])
if type(number) == 'table' then return {now, 0} end -- of another type: not ours
local reply = {now, number}
local found = redis.call('ZRANGE', KEYS[1], 0, ARGV[1] - 1, 'WITHSCORES')
for i = 1, #found, 2 do
  local stored = redis.pcall('HGET', KEYS[2], found[i])
  reply[#reply + 1] = found[i + 1]
  reply[#reply + 1] = type(stored) == 'string' and string.sub(stored, 1, 16384) or false
end
return reply
