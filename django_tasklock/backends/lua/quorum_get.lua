-- The values of some locks on an instance.
-- KEYS: locks
-- Reply: {now ms, for each lock in turn: its ms left (-1: no expiry), its value or nil}
-- use: values clock
local reply = {(clock())}
for i, key in ipairs(KEYS) do
  local value = redis.pcall('GET', key)
  if type(value) == 'table' then value = '' end -- of another type: foreign
  reply[2 * i], reply[2 * i + 1] = redis.call('PTTL', key), clipped(value)
end
return reply
