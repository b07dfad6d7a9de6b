-- The server's clock and eviction policy.
-- KEYS: none
-- ARGV: none
-- Reply: {ms of its clock, maxmemory_policy, empty if this user may not run INFO}
-- use: clock
local told = redis.pcall('INFO', 'memory')
local policy = type(told) == 'string' and string.match(told, 'maxmemory_policy:([%w-]+)') or ''
return {string.format('%.0f', clock()), policy}
