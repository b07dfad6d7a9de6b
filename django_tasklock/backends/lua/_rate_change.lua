-- For the scripts that change a book, before they do.

-- A server whose memory is full aborts a script at its first write, unless that is a command that needs no memory, as
-- this one, which does nothing. A limiter stores no more than the calls it lets through, and all its keys expire.
redis.pcall('ZREM', KEYS[4], '')
if is_new then redis.call('DEL', FREE, LINE, unpack(KEYS, 6)) end

local renew = false -- all expiries, as a new key has none

local function adjust(share)
  set('share', share)
  set('changed', time)
  set('spent', 0)
end
