-- What the server says of itself.
-- KEYS: none
-- ARGV: none
-- Reply: {ms of its clock, what it does when its memory is full: empty where this user may not know}
-- use: clock
local told = redis.pcall('INFO', 'memory')
local policy = type(told) == 'string' and string.match(told, 'maxmemory_policy:([%w-]+)') or ''
return {string.format('%.0f', clock()), policy}
