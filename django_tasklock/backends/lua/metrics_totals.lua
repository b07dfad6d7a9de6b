-- The sum of all counts, or the counts of some hours. First the acquisitions of locks that are still held are counted,
-- of a limited number of locks per call: if there are more, the caller must call again with the next offset.
-- KEYS: 1 index by expiry
-- ARGV: 1 how many of the last hours; '': the sum of all, 2 offset in the index, 3 how many locks to examine
-- Reply: {size of the index}, followed, if no locks remain, by: hour or '', {field, value, ...}, ...
-- use: clock counts
local now = clock()
count_at(KEYS[1], now)
local current, offset = math.floor(now / HOUR), tonumber(ARGV[2])
local size = redis.pcall('ZCARD', KEYS[1])
local page = type(size) == 'number' and redis.call('ZRANGE', KEYS[1], offset, offset + ARGV[3] - 1) or {}
for start = 1, #page, 1000 do
  local names, open = {}, {}
  for i = start, math.min(start + 999, #page) do
    names[#names + 1] = name_of(page[i])
    open[#open + 1] = ROOT .. 'open:' .. names[#names]
  end
  for i, value in ipairs(redis.call('MGET', unpack(open))) do
    local kind, since
    if value then kind, since = kind_and_time(value) end
    if kind and count_acquired(kind, since) then redis.pcall('RENAME', open[i], ROOT .. 'held:' .. names[i]) end
  end
end
local reply = {type(size) == 'number' and size or 0}
if reply[1] > offset + ARGV[3] then return reply end
if ARGV[1] == '' then
  for _, hour in ipairs(redis.call('SMEMBERS', ROOT .. 'hours')) do
    reply[#reply + 1] = ''
    reply[#reply + 1] = redis.call('HGETALL', ROOT .. 'counts:' .. hour)
  end
  reply[#reply + 1] = ''
  reply[#reply + 1] = redis.call('HGETALL', ROOT .. 'totals')
  return reply
end
local latest = math.floor(running(redis.pcall('PTTL', COUNTS)) / HOUR)
for hour = current - ARGV[1] + 1, current do
  local text = string.format('%.0f', hour)
  for _, key in ipairs({'hour:' .. text, 'counts:' .. text, hour == latest and 'counts:now' or ''}) do
    local flat = key ~= '' and redis.call('HGETALL', ROOT .. key) or {}
    if flat[1] then
      reply[#reply + 1] = text
      reply[#reply + 1] = flat
    end
  end
end
return reply
