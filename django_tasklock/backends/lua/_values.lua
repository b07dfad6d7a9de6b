-- What else scripts do with a lock's value, or find in its place.

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
  return value and #value > 16384 and string.sub(value, 1, 16384) or value
end

-- A server whose memory is full refuses a script its first write, unless that is one that needs no memory: so each
-- script that must go on begins with such a write, here one that does nothing. What a lock needs is little, and ends
-- by itself; and a full server would make every holder lose its lock, and every caller run without one.
local function even_if_full(set)
  redis.pcall('ZREM', set, '')
end

