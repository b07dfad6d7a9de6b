-- Shared by the scripts of rate limits: put before them when they are loaded. Not a verb.
-- The same in plain Python, which a property test holds beside it: ledger.py.
--
-- A limiter's clock is the server's, less the time it was stopped; places ("slots") are times on it. Microseconds.
-- KEYS: 1 meta, 2 places given back, 3 index of limiters, 4... one ring per rate
-- ARGV: 1 cost, 2 slot, 3 epoch, 4 amount, 5 mode, 6 name, 7 algorithm, 8 'wait' after a cold start, 9 floor of the
--       share, 10 horizon, 11 the longest window with its margin, 12 how often the limit may be adapted;
--       then for each rate: limit, window, margin, cell, burst
--
-- meta (hash): epoch, off (how long the clock was stopped), until (it stands still until then), last (the last place
--   booked), from (none before), share (of the limit, in millionths), changed, spent (units since), hz (the greatest
--   horizon), refused, seq; and by window: n:<w> units in the ring that count, x:<w> bookings at its end
--   that do not, because limit units came later, and stand aside, z:<w> the newest of those that were dropped,
--   b:<w> the last place that was booked before the ring began;
--   terms (those of the last call, as Terms.text() has them, for those who look at it);
--   tat:<w> (paced, bucket), k:<w> c:<w> p:<w> (counter: number of the window, units in it, in the one before).
-- ring (list): time, units, time, units, ..., the newest first.
-- places given back (sorted set): "units:serial", scored by slot.

local WHOLE, LOOKED_AT, SWEPT, ASIDE = 1000000, 16, 64, 10000
local cost, slot, epoch, amount = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])
local spaced, leeway = string.find(ARGV[5], '^spaced') ~= nil, tonumber(string.match(ARGV[5], '%d+$')) or 0
local algorithm, cold, floor = ARGV[7], ARGV[8] == 'wait', tonumber(ARGV[9])
local horizon, longest, pace = tonumber(ARGV[10]), tonumber(ARGV[11]), tonumber(ARGV[12])
local rates = {}
for i = 13, #ARGV, 5 do
  rates[#rates + 1] = {limit = tonumber(ARGV[i]), window = tonumber(ARGV[i + 1]), margin = tonumber(ARGV[i + 2]),
    cell = tonumber(ARGV[i + 3]), burst = tonumber(ARGV[i + 4]), key = ARGV[i + 1], ring = KEYS[4 + #rates]}
end

local function text(number) return string.format('%.0f', number) end -- tostring() has 14 digits

local clock = redis.call('TIME')
local time = clock[1] * 1000000 + clock[2]

local meta, dirty, rebuilt, told = {}, {}, 0, nil
local stored = redis.call('HGETALL', KEYS[1])
for i = 1, #stored, 2 do
  if stored[i] == 'terms' then told = stored[i + 1] else meta[stored[i]] = tonumber(stored[i + 1]) end
end
local function get(key) return meta[key] or 0 end
local function set(key, value)
  if meta[key] ~= value then meta[key], dirty[key] = value, true end
end

local function begin(first, wait)
  if next(meta) then
    redis.call('DEL', KEYS[1], KEYS[2])
    for _, rate in ipairs(rates) do redis.call('DEL', rate.ring) end
    told = nil
  end
  meta, dirty = {}, {}
  set('epoch', first)
  set('share', WHOLE)
  set('hz', horizon)
  if wait then set('from', time + longest) end
end

local function now() return math.max(time, get('until')) - get('off') end

if not meta.epoch then begin(time, cold) end
if get('hz') < horizon then set('hz', horizon) end

local function wait_for(at)
  if get('until') > time then at = math.max(at, now()) end
  return at + get('off') - time
end

-- Write what changed, and let everything live as long as it matters.
local function finish()
  local ends = math.max(get('last'), get('from'), now()) + get('off') + longest
  local fields = {}
  for key in pairs(dirty) do
    fields[#fields + 1] = key
    fields[#fields + 1] = text(meta[key])
  end
  local terms = {algorithm, ARGV[8], ARGV[9], ARGV[10]} -- short: above 64 characters Redis stores the hash less densely
  for i = 13, #ARGV, 5 do
    for j = i, i + 2 do terms[#terms + 1] = ARGV[j] end
    if algorithm == 'tat' then terms[#terms + 1] = ARGV[i + 4] end
  end
  terms = table.concat(terms, ' ')
  if terms ~= told then
    fields[#fields + 1] = 'terms'
    fields[#fields + 1] = terms
  end
  if fields[1] then redis.call('HSET', KEYS[1], unpack(fields)) end
  local left = math.ceil((ends - time) / 1000) + 1000
  redis.call('PEXPIRE', KEYS[2], left)
  if algorithm == 'window' then
    for _, rate in ipairs(rates) do redis.call('PEXPIRE', rate.ring, left) end
  end
  if cold then left = math.max(left, 2592000000) elseif get('share') ~= WHOLE then left = math.max(left, 86400000) end
  redis.call('PEXPIRE', KEYS[1], left)
  redis.call('ZADD', KEYS[3], text(time), ARGV[6])
  if time % 64 == 0 then redis.call('ZREMRANGEBYSCORE', KEYS[3], '-inf', text(time - 2592000000000)) end
end

if get('last') - now() > get('hz') + longest or get('until') - time > get('hz') + longest then
  begin(math.max(get('epoch') + 1, time), true) -- the server's clock was set back
  rebuilt = 1
  finish()
end

-- One rate

local function limit_of(rate) return math.max(1, math.floor(rate.limit * get('share') / WHOLE)) end

local function interval(rate) return math.ceil((rate.window + rate.margin) / limit_of(rate)) end

local function end_of(rate, at) return at + (rate.cell - at % rate.cell) % rate.cell end

local function newest(rate)
  return math.max(tonumber(redis.call('LINDEX', rate.ring, 0) or get('z:' .. rate.key)), get('b:' .. rate.key))
end

local function turn(rate)
  local number = (now() - math.fmod(now(), rate.window)) / rate.window
  local ago = number - get('k:' .. rate.key)
  if ago ~= 0 then
    set('p:' .. rate.key, ago == 1 and get('c:' .. rate.key) or 0)
    set('c:' .. rate.key, 0)
    set('k:' .. rate.key, number)
  end
end

local function excess(rate, units)
  turn(rate)
  local current, previous, limit = get('c:' .. rate.key), get('p:' .. rate.key), limit_of(rate)
  local window, past = rate.window, math.fmod(now(), rate.window)
  if current + units + previous * ((window - past) / window) <= limit then return 0 end
  if current + units <= limit then
    return math.max(1, math.ceil(window - (limit - current - units) * (window / previous)) - past)
  end
  local further = 0
  if current > 0 then further = math.ceil(window - math.max(0, limit - units) * (window / current)) end
  return window - past + math.max(0, further)
end

-- Count again what stands aside, if places were given back or the limit was raised.
local function recount(rate)
  local total, aside = get('n:' .. rate.key), get('x:' .. rate.key)
  while aside > 0 and total < rate.limit do
    local back = redis.call('LINDEX', rate.ring, -2 * aside + 1)
    if not back then return end
    total, aside = total + tonumber(back), aside - 1
    set('n:' .. rate.key, total)
    set('x:' .. rate.key, aside)
  end
end

-- Before this time the rate has no place for so many units.
local function first(rate, units)
  if algorithm == 'counter' then return now() + excess(rate, units) end
  if algorithm ~= 'window' then
    local burst = math.max(rate.burst, units)
    return get('tat:' .. rate.key) - (burst - units) * interval(rate)
  end
  recount(rate)
  local at, total, limit, read = get('z:' .. rate.key), get('n:' .. rate.key), limit_of(rate), get('x:' .. rate.key)
  while total + units > limit and total > 0 do
    local number = math.min(64, math.max(1, total + units - limit))
    local pairs_ = redis.call('LRANGE', rate.ring, -2 * (read + number), -2 * read - 1)
    if not pairs_[1] then break end
    read = read + number
    for i = #pairs_ - 1, 1, -2 do
      if total + units <= limit or total <= 0 then break end
      at, total = math.max(at, tonumber(pairs_[i])), total - tonumber(pairs_[i + 1])
    end
    if #pairs_ < 2 * number then break end
  end
  return at > 0 and at + rate.window + rate.margin or 0
end

local function enter(rate, at, units)
  if algorithm == 'counter' then
    turn(rate)
    set('c:' .. rate.key, get('c:' .. rate.key) + units)
  elseif algorithm ~= 'window' then
    set('tat:' .. rate.key, math.max(get('tat:' .. rate.key), at) + units * interval(rate))
  else
    local head = redis.call('LRANGE', rate.ring, 0, 1)
    local total, aside, length = units, 0, 1
    if not meta['n:' .. rate.key] and get('last') > 0 then set('b:' .. rate.key, get('last')) end
    if head[1] then
      total, aside = get('n:' .. rate.key) + units, get('x:' .. rate.key)
      length = redis.call('LLEN', rate.ring) / 2 + 1
    end
    local stamp = end_of(rate, at)
    if head[1] and tonumber(head[1]) >= stamp then
      redis.call('LSET', rate.ring, 1, text(tonumber(head[2]) + units))
      length = length - 1
    else
      redis.call('LPUSH', rate.ring, text(units), text(stamp))
    end
    while total > rate.limit and length - aside > 1 do -- whoever comes next need not look at the oldest
      local old = redis.call('LRANGE', rate.ring, -2 * aside - 2, -2 * aside - 1)
      if total - tonumber(old[2]) < rate.limit then break end
      total, aside = total - tonumber(old[2]), aside + 1
    end
    while aside > 0 do -- until their windows are over
      local old = tonumber(redis.call('LINDEX', rate.ring, -2))
      if aside <= ASIDE and old > now() - rate.window then break end
      redis.call('LTRIM', rate.ring, 0, -3)
      set('z:' .. rate.key, old)
      aside = aside - 1
    end
    set('n:' .. rate.key, total)
    set('x:' .. rate.key, aside)
  end
end

local function strike(rate, at, units)
  if algorithm == 'counter' then
    turn(rate)
    if (at - math.fmod(at, rate.window)) / rate.window == get('k:' .. rate.key) then
      set('c:' .. rate.key, math.max(0, get('c:' .. rate.key) - units))
    end
  elseif algorithm ~= 'window' then
    if at == get('last') then
      set('tat:' .. rate.key, get('tat:' .. rate.key) - units * interval(rate))
    end
  else
    local found = redis.call('LPOS', rate.ring, text(end_of(rate, at)))
    if found then
      local number = tonumber(redis.call('LINDEX', rate.ring, found + 1))
      local aside = get('x:' .. rate.key)
      local out = redis.call('LLEN', rate.ring) / 2 - found / 2 <= aside
      units = math.min(units, number)
      if number == units then
        if out then set('x:' .. rate.key, aside - 1) end
        redis.call('LSET', rate.ring, found, '')
        redis.call('LSET', rate.ring, found + 1, '')
        redis.call('LREM', rate.ring, 2, '')
      else
        redis.call('LSET', rate.ring, found + 1, text(number - units))
      end
      if not out then set('n:' .. rate.key, get('n:' .. rate.key) - units) end
    end
  end
end

-- All rates

local function undo(at, units)
  for _, rate in ipairs(rates) do strike(rate, at, units) end
end

local function place(units)
  local at = math.max(now(), get('from'))
  if algorithm ~= 'counter' then at = math.max(at, get('last')) end
  local bound, strictest = -math.huge, rates[1]
  for _, rate in ipairs(rates) do
    local one = first(rate, units)
    if one > bound then bound, strictest = one, rate end
  end
  at = math.max(at, bound)
  if spaced and at > now() and algorithm == 'window' then
    at = math.max(at, get('last') + units * interval(strictest))
  end
  return at
end

local function units_of(member) return tonumber(string.match(member, '^%d+')) end

-- The first place given back that is big enough: its member and slot, or nil.
local function found(units)
  local some = redis.call('ZRANGEBYSCORE', KEYS[2], text(now()), '+inf', 'WITHSCORES', 'LIMIT', 0, LOOKED_AT)
  for i = 1, #some, 2 do
    if units_of(some[i]) >= units then return some[i], tonumber(some[i + 1]) end
  end
end

local function take(member, at, units)
  redis.call('ZREM', KEYS[2], member)
  local number = units_of(member)
  if number > units then
    redis.call('ZADD', KEYS[2], text(at), text(number - units) .. string.match(member, ':.*$'))
  end
end

local function sweep()
  if redis.call('EXISTS', KEYS[2]) == 0 then return end
  local old = redis.call('ZRANGEBYSCORE', KEYS[2], '-inf', '(' .. text(now()), 'WITHSCORES', 'LIMIT', 0, SWEPT)
  for i = 1, #old, 2 do
    redis.call('ZREM', KEYS[2], old[i])
    undo(tonumber(old[i + 1]), units_of(old[i]))
  end
end

-- After this nothing is booked: every ring has the last booking, some only know its cell.
local function latest()
  local at = newest(rates[1])
  for _, rate in ipairs(rates) do at = math.min(at, newest(rate)) end
  return at
end

local function give(at, units)
  if algorithm ~= 'window' or at ~= get('last') then
    set('seq', get('seq') + 1)
    redis.call('ZADD', KEYS[2], text(at), text(units) .. ':' .. text(get('seq')))
    return
  end
  undo(at, units)
  set('last', math.min(at, latest()))
  while true do
    local top = redis.call('ZREVRANGE', KEYS[2], 0, 0, 'WITHSCORES')
    if not top[1] or tonumber(top[2]) ~= get('last') then return end
    redis.call('ZREM', KEYS[2], top[1])
    undo(get('last'), units_of(top[1]))
    set('last', math.min(get('last'), latest()))
  end
end

local function booked(at)
  local wait = wait_for(at)
  return {1, at, wait, get('epoch'), get('off'), time + wait, rebuilt, 0}
end

local function grow()
  if floor == 0 or get('share') >= WHOLE or time < get('changed') + pace then return end
  local rate = rates[1]
  for _, other in ipairs(rates) do
    if other.window < rate.window then rate = other end
  end
  if get('spent') * 2 >= limit_of(rate) then
    set('share', math.min(WHOLE, get('share') + math.ceil(WHOLE / rate.limit)))
  end
  set('changed', time)
  set('spent', 0)
end

-- Book the first place. One with leeway is booked for the latest time at which it may be used.
-- Reply: {1, slot, wait, epoch, off, time, rebuilt, leeway} or {0, wait, epoch, off}
local function reserve()
  grow()
  sweep()
  local member, at
  if leeway == 0 then member, at = found(cost) end
  if not member then at = place(cost) end
  local wait = wait_for(at)
  if wait > amount or (algorithm == 'counter' and wait > 0) then
    set('refused', get('refused') + 1)
    finish()
    return {0, wait, get('epoch'), get('off')}
  end
  at = at + leeway
  if member then
    take(member, at, cost)
  else
    for _, rate in ipairs(rates) do enter(rate, at, cost) end
    set('last', at)
  end
  if get('share') < WHOLE then set('spent', get('spent') + cost) end
  finish()
  return {1, at, wait, get('epoch'), get('off'), time + wait, rebuilt, leeway}
end
