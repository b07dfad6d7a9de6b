-- Leave the order of a name, or count its members before a sequence number.
-- KEYS: 1 order
-- ARGV: 1 member that leaves ('': none), 2 sequence number, 3 'forget': remove the members before it
-- Reply: how many members were before the number
if ARGV[1] ~= '' then redis.call('ZREM', KEYS[1], ARGV[1]) end
local before = '(' .. ARGV[2]
if ARGV[3] == 'forget' then return redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', before) end
return redis.call('ZCOUNT', KEYS[1], '-inf', before)
