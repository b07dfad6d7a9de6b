-- Shared by the scripts of rate limits: the book of one limiter. backends/ledger has the same in Python, and says why no
-- window has more calls than the limit; a property test compares the two. Not an operation.
--
-- A limiter's clock is the server's, minus the time it was stopped; slots are times on it. Microseconds.
-- KEYS: 1 meta, 2 slots given back, 3 the line, 4 index of limiters, 5 index of its tenants, 6... one ring per rate
-- ARGV: 1 name of the limiter, 2 that of its tenant or '', the numbers of Terms.numbers(): 3 least share, 4 horizon,
--   then limit, window and margin of each rate; then the arguments of the verb, numbers
--
-- meta (hash): epoch (when the book was begun), serial (the last serial number), off (for how long the clock was
--   stopped), until (the clock is stopped until then), last (the last slot), share (of the limit, in millionths),
--   changed (when the share was), spent (units since), refused, idx (when the index was updated), terms (of the last
--   call, for readers); and by window: n:<w> the units in the ring that count, x:<w> the bookings at its end that are
--   set aside, because limit units came later.
-- ring (list): slot, units, serial number of its owner, slot, units, serial number, ..., the newest first.
-- slots given back, and the line (sorted sets): "units:slot", scored by slot.

local clock = redis.call('TIME')
local time = clock[1] * 1000000 + clock[2]

local FULL_SHARE, TICK, OPENS_BEFORE, RECORD_TIME_EVERY = 1000000, 1000, 1000000, 1000000
local FREE, LINE = KEYS[2], KEYS[3]

local rates, arguments, margin, longest_window, adaptation_interval = {}, {}, math.huge, 0, math.huge
local min_share, at = tonumber(ARGV[3]), 5
for i = 6, #KEYS do
  local limit, window, its_margin = tonumber(ARGV[at]), tonumber(ARGV[at + 1]), tonumber(ARGV[at + 2])
  rates[i - 5] = {limit = limit, window = window, margin = its_margin, ring = KEYS[i],
    counted = 'n:' .. ARGV[at + 1], aside = 'x:' .. ARGV[at + 1]}
  margin, longest_window = math.min(margin, its_margin), math.max(longest_window, window + its_margin)
  adaptation_interval = math.min(adaptation_interval, math.max(1000000, window))
  at = at + 3
end
local terms = table.concat(ARGV, ' ', 3, at - 1)
for i = at, #ARGV do arguments[i - at + 1] = tonumber(ARGV[i]) end

local meta, dirty, stored_terms = {}, {}, nil
local stored = redis.call('HGETALL', KEYS[1])
for i = 1, #stored, 2 do
  if stored[i] == 'terms' then stored_terms = stored[i + 1] else meta[stored[i]] = tonumber(stored[i + 1]) end
end
local is_new = not meta.epoch

local function text(number) return string.format('%.0f', number) end -- tostring() has 14 digits

local function get(key) return meta[key] or 0 end

local function set(key, value)
  if meta[key] ~= value then meta[key], dirty[key] = value, true end
end

local function begin_edition(edition)
  meta, dirty, stored_terms = {}, {}, nil
  set('epoch', edition)
  set('share', FULL_SHARE)
  set('idx', time)
end

local function now() return math.max(time, get('until')) - get('off') end

local function time_until(slot)
  if get('until') > time then slot = math.max(slot, now()) end
  return slot + get('off') - time
end

local function limit_of(rate) return math.max(1, math.floor(rate.limit * get('share') / FULL_SHARE)) end

if is_new then begin_edition(time) end
local behind = get('idx') - time
if behind >= RECORD_TIME_EVERY then -- the server's clock was set back: the limiter's continues from where it was
  for _, key in ipairs({'off', 'until', 'changed'}) do set(key, get(key) - behind) end
end
if math.abs(behind) >= RECORD_TIME_EVERY then set('idx', time) end
