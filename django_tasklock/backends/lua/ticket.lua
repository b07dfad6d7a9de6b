-- Draw a ticket: the time in microseconds, greater than any drawn before; join a line with it.
-- KEYS: 1 last ticket, 2 line
-- ARGV: 1 member ('': none), 2 ms the line is kept for
-- Reply: the ticket
local _, t = clock()
local n = t[1] * 1e6 + t[2]
local last = tonumber(redis.call('GET', KEYS[1]) or 0)
if n <= last then n = last + 1 end
local text = string.format('%.0f', n)
even_if_full(KEYS[2])
redis.call('SET', KEYS[1], text)
if ARGV[1] ~= '' then
  redis.call('ZADD', KEYS[2], text, ARGV[1])
  redis.call('PEXPIRE', KEYS[2], ARGV[2])
end
return n
