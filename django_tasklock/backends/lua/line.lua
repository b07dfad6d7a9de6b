-- Leave a line, or see who stands before a ticket in it.
-- KEYS: 1 line
-- ARGV: 1 member that leaves ('': none), 2 ticket, 3 'forget': who stands before it leaves as well
-- Reply: how many stood before the ticket
if ARGV[1] ~= '' then redis.call('ZREM', KEYS[1], ARGV[1]) end
local before = '(' .. ARGV[2]
if ARGV[3] == 'forget' then return redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', before) end
return redis.call('ZCOUNT', KEYS[1], '-inf', before)
