-- Functions for a lock's value, or for other data in its place.

-- Whether a value is the lock of this token.
local function owned(value, token)
  return string.sub(value, 11, 11 + #token) == token .. '"'
end

-- Whether a value is foreign, not written by us: callers pass '' as its token.
local function foreign(value)
  return not string.find(value, '^{"token":"[^"]+"')
end

-- The reply of a command; for a key of another type as if it were missing.
local function unless_other(...)
  local reply = redis.pcall(...)
  if type(reply) ~= 'table' or not reply.err then return reply end
  if not string.find(reply.err, 'WRONGTYPE', 1, true) then error(reply.err, 0) end
  return false
end

-- A value, truncated for display. Ours have a few hundred bytes; of a longer one the token is enough.
local function clipped(value)
  return value and #value > 16384 and string.sub(value, 1, 16384) or value
end

-- A server whose memory is full aborts a script at its first write, unless that is a command that needs no memory: so a
-- script that must not fail begins with such a command, here one that does nothing. A lock needs little memory, and
-- expires; and if a full server refused, every holder would lose its lock, and every caller would run without one.
local function even_if_full(set)
  redis.pcall('ZREM', set, '')
end

