-- Take the lock away from its holder; the longest waiter gets it.
-- KEYS: as in acquire.lua, 1 to 5
-- ARGV: 1 the token it must have ('': a foreign value), 2 'any' token ('': only that one)
-- Reply: nil if nothing was removed, else {ms left (-1: no expiry), value, now ms, number of waiters}
-- use: values clock fence grant waiters pass_on
local value = redis.pcall('GET', KEYS[1])
if type(value) == 'table' then value = '' end -- of another type: foreign
if not value then
  redis.call('ZREM', KEYS[2], KEYS[1])
  return false
end
if ARGV[2] == '' then
  if ARGV[1] == '' and not foreign(value) then return false end
  if ARGV[1] ~= '' and not owned(value, ARGV[1]) then return false end
end
local reply = {redis.call('PTTL', KEYS[1]), clipped(value), (clock()), redis.call('ZCARD', KEYS[4])}
redis.call('DEL', KEYS[1])
if not pass_on() then redis.call('ZREM', KEYS[2], KEYS[1]) end
return reply
