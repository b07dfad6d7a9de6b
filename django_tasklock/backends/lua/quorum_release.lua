-- Take the lock away from its holder.
-- KEYS: 1 lock, 2 index by expiry
-- ARGV: 1 token ('': a foreign value), 2 '' from its holder; 'remove': by an operator, who also forgets a lapsed lock;
--       'any': the same, from any holder
-- Reply: 0 the lock is free, -1 it is another holder's, else what was removed: {ms left (-1: no expiry), value, now ms}
-- use: values clock
local value = redis.pcall('GET', KEYS[1])
if type(value) == 'table' then value = '' end -- of another type: foreign
if not value then
  if ARGV[2] ~= '' then redis.call('ZREM', KEYS[2], KEYS[1]) end
  return 0
end
local theirs = ARGV[1] ~= '' and not owned(value, ARGV[1]) or ARGV[1] == '' and not foreign(value)
if theirs and ARGV[2] ~= 'any' then return -1 end
local reply = {redis.call('PTTL', KEYS[1]), clipped(value), (clock())}
redis.call('DEL', KEYS[1])
redis.call('ZREM', KEYS[2], KEYS[1])
return reply
