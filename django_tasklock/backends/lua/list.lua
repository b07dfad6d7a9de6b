-- Locks of a state, by expiry. Wrong entries of the index that are met are corrected.
-- KEYS: 1 index by expiry
-- ARGV: 1 'live', 'expiring', 'no_expiry' or 'orphaned', 2 offset, 3 how many at most,
--       4 ms left below which a lock is expiring, 5 key prefix, 6 queue prefix
-- Reply: {1, or 0: so many entries were corrected that it is to be asked again, now ms, and for each lock one text, which
--         is read faster than a list: when it expires (ms since 1970, 'inf': never), waiters, length of the key, both}
-- use: values clock
local HEALS = 5000 -- corrections by one script: Redis serves no other client meanwhile
local now = clock()
local function ms(time) return string.format('%.0f', time) end
local which, low, high = ARGV[1], '(' .. ms(now), '+inf'
if which == 'expiring' then high = ms(now + ARGV[4]) end
if which == 'no_expiry' then low = '+inf' end
if which == 'orphaned' then low, high = '-inf', ms(now) end
local reply, shown, healed = {1, now}, 0, 0

local function show(key, value, ends)
  local waiting = redis.pcall('ZCARD', ARGV[6] .. string.sub(key, #ARGV[5] + 1))
  waiting = type(waiting) == 'number' and waiting or 0
  reply[#reply + 1] = table.concat({ends, waiting, #key, key .. clipped(value)}, ' ')
  shown = shown + 1
end

repeat
  local before = healed
  local page = redis.call('ZRANGEBYSCORE', KEYS[1], low, high, 'WITHSCORES', 'LIMIT', ARGV[2] + shown, ARGV[3] - shown)
  for i = 1, #page, 2 do
    local key, score = page[i], tonumber(page[i + 1])
    local value = redis.pcall('GET', key)
    if type(value) == 'table' then value = '' end -- of another type: foreign, but shown
    local left = redis.call('PTTL', key)
    local ends = left < 0 and math.huge or now + math.max(1, left) -- in its last millisecond a key has none left
    if not value and which == 'orphaned' then
      show(key, '', page[i + 1])
    elseif not value then -- deleted by hand or evicted, not lapsed
      redis.call('ZREM', KEYS[1], key)
      healed = healed + 1
    elseif which == 'orphaned' or math.abs(ends - score) >= 1000 then -- its time was changed by hand
      redis.call('ZADD', KEYS[1], left < 0 and '+inf' or ms(ends), key)
      healed = healed + 1
      if ends < score and which ~= 'no_expiry' then show(key, value, ms(ends)) end -- else it is to be met later
    else
      show(key, value, page[i + 1]) -- exactly as indexed: readers of several pages compare that
    end
  end
  if healed >= HEALS and shown < tonumber(ARGV[3]) then reply[1] = 0 end
until healed == before or reply[1] == 0
return reply
