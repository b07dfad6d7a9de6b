-- Shared by the scripts of rate limits, which begin with it. Not an operation.
-- backends/ledger has the same in Python; a property test compares the two.
--
-- A limiter's clock is the server's, minus the time it was stopped; slots are times on it. Microseconds.
-- KEYS: 1 meta, 2 slots given back, 3 index of limiters, 4 numbers, 5 the line, 6... one ring per rate
-- ARGV: 1 cost, 2 slot, 3 edition, 4 amount, 5 mode, 6 name, 7 algorithm, 8 'wait': wait after a cold start, 9 floor of
--       the share, 10 horizon, 11 the longest window with its margin, 12 the least time between adaptations of the
--       limit, 13 the terms as Terms.text(); then for each rate: limit, window, margin, cell, burst
--
-- meta (hash): epoch (the edition), off (for how long the clock was stopped), until (the clock is stopped until then),
--   last (the last booked slot), from (the earliest slot), share (of the limit, in millionths), changed (when the share
--   was), spent (units since), hz (the greatest horizon), refused, seq; and by window: n:<w> the units in the ring that
--   count, x:<w> the bookings at its end that are set aside, because limit units came later, z:<w> the newest that was
--   dropped, b:<w> the last slot booked before the ring began;
--   terms (of the last call, for readers); exp (the expiry of the keys, in milliseconds), idx (when the index was
--   updated), calm (until then the only check is for room), buried (the greatest of the numbers), stood (whether there is a line);
--   tat:<w> (paced, bucket). An older version may have left k:<w>, c:<w> and p:<w>, which are not used any more.
-- ring (list): time, units, time, units, ..., the newest first.
-- slots given back (sorted set): "units:serial", scored by slot.
-- the line (sorted set): "units:slot" of a slot that is not taken yet, scored by slot.
-- numbers (sorted set), scored by themselves: a slot is on a grid, its first number is its time, and each time it is
--   booked again it gets the next one. "number": given back under it; "number+": booked again under it.

local clock = redis.call('TIME')
local time = clock[1] * 1000000 + clock[2]
local FIRST, GRID = 14, 16 -- the first rate in ARGV; microseconds between two slots

-- A server whose memory is full aborts a script at its first write, unless that is a command that needs no memory, as
-- this one, which does nothing. A limiter stores no more than the calls it lets through, and all its keys expire.
local function even_if_full() redis.pcall('ZREM', KEYS[3], '') end

-- The usual case first, without the setup for the others: "calm", one rate without cells, and there is room.
if string.sub(ARGV[5], 1, 4) == 'soon' then
  local key = ARGV[FIRST + 1]
  local got = redis.call('HMGET', KEYS[1], 'calm', 'terms', 'epoch', 'last', 'off', 'n:' .. key, 'x:' .. key)
  if got[1] and time < tonumber(got[1]) and got[2] == ARGV[13] and got[6] and got[7] == '0' then
    local off, last, used, limit = tonumber(got[5] or 0), tonumber(got[4]), tonumber(got[6]), tonumber(ARGV[FIRST])
    local units, at, old = tonumber(ARGV[1]), math.max(time - off, last + 1), nil
    at = at - at % GRID
    if at <= last then at = at + GRID end
    if used == limit and units == 1 then -- the oldest makes room
      old = redis.call('LRANGE', KEYS[6], -2, -1)
      if old[2] == '1' and old[1] + ARGV[FIRST + 1] + ARGV[FIRST + 2] <= at then used = used - 1 end
    end
    if used + units <= limit and at + off - time < 1000 then
      local stamp = string.format('%.0f', at)
      local length = redis.pcall('LPUSH', KEYS[6], ARGV[1], stamp)
      if type(length) == 'table' then
        even_if_full()
        length = redis.call('LPUSH', KEYS[6], ARGV[1], stamp)
      end
      if length > 2 then
        if old then
          redis.call('LTRIM', KEYS[6], 0, -3)
          redis.call('HSET', KEYS[1], 'last', stamp, 'z:' .. key, old[1])
        else
          redis.call('HSET', KEYS[1], 'last', stamp, 'n:' .. key, used + units)
        end
        local due = at + off
        return string.format('1 %s %.0f %s %.0f %.0f 0 0 0', stamp, due - time, got[3], off, due)
      end
      redis.call('DEL', KEYS[6]) -- it was deleted by hand: count again
    end
  end
end

even_if_full()

local FULL_SHARE, MAX_EXAMINED, MAX_REMOVED, MAX_ASIDE = 1000000, 16, 64, 10000
local TICK, MAX_LEEWAY, OPENS_BEFORE, RECORD_TIME_EVERY = 1000, 10000000, 1000000, 1000000
local cost, slot, edition, amount = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])
local spaced, leeway = string.find(ARGV[5], '^spaced') ~= nil, tonumber(string.match(ARGV[5], '%d+$')) or 0
local will_resume = string.find(ARGV[5], 'will_resume') ~= nil
local algorithm, cold_wait, min_share = ARGV[7], ARGV[8] == 'wait', tonumber(ARGV[9])
local horizon, longest_window, adaptation_interval = tonumber(ARGV[10]), tonumber(ARGV[11]), tonumber(ARGV[12])
local function text(number) return string.format('%.0f', number) end -- tostring() has 14 digits

local rates = {}
for i = FIRST, #ARGV, 5 do
  rates[#rates + 1] = {limit = tonumber(ARGV[i]), window = tonumber(ARGV[i + 1]), margin = tonumber(ARGV[i + 2]),
    cell = tonumber(ARGV[i + 3]), burst = tonumber(ARGV[i + 4]), key = ARGV[i + 1], ring = KEYS[6 + #rates]}
end

local margin = rates[1].margin
for _, rate in ipairs(rates) do margin = math.min(margin, rate.margin) end

local meta, dirty, rebuilt, stored_terms, renew_expiry = {}, {}, 0, nil, false -- renew_expiry: a new key has none
local stored = redis.call('HGETALL', KEYS[1])
for i = 1, #stored, 2 do
  local key, value = stored[i], stored[i + 1]
  if key == 'terms' then
    stored_terms = value
  else
    meta[key] = tonumber(value)
  end
end
local function get(key) return meta[key] or 0 end
local function set(key, value)
  if meta[key] ~= value then meta[key], dirty[key] = value, true end
end

local function begin_edition(new_edition, wait_first)
  if next(meta) then
    redis.call('DEL', KEYS[1], KEYS[2], KEYS[4], KEYS[5])
    for _, rate in ipairs(rates) do redis.call('DEL', rate.ring) end
    stored_terms = nil
  end
  meta, dirty, renew_expiry = {}, {}, true
  set('epoch', new_edition)
  set('share', FULL_SHARE)
  set('hz', horizon)
  if wait_first then set('from', time + longest_window) end
end

local function now() return math.max(time, get('until')) - get('off') end

if not meta.epoch then begin_edition(time, cold_wait) end
if get('hz') < horizon then set('hz', horizon) end

local function time_until(at)
  if get('until') > time then at = math.max(at, now()) end
  return at + get('off') - time
end

-- Write the changes, and set the expiry of all keys: somewhat longer than needed, so that not each call has to.
local function finish()
  local left = math.ceil((math.max(get('last'), get('from'), now()) + get('off') + longest_window - time) / 1000) + 1000
  local moment = math.floor(time / 1000)
  if renew_expiry or dirty.share or moment + left > get('exp') then
    left = left + math.max(1000, math.floor(left / 4))
    set('exp', moment + left)
    redis.call('PEXPIRE', KEYS[2], left)
    redis.call('PEXPIRE', KEYS[4], left)
    redis.call('PEXPIRE', KEYS[5], left)
    if algorithm == 'window' then
      for _, rate in ipairs(rates) do redis.call('PEXPIRE', rate.ring, left) end
    end
    if cold_wait then
      left = math.max(left, 2592000000)
    elseif get('share') ~= FULL_SHARE then
      left = math.max(left, 86400000)
    end
    renew_expiry = left
  end
  if math.abs(time - get('idx')) >= RECORD_TIME_EVERY then
    set('idx', time)
    redis.call('ZADD', KEYS[3], text(time), ARGV[6])
    if time % 64 == 0 then redis.call('ZREMRANGEBYSCORE', KEYS[3], '-inf', text(time - 2592000000000)) end
  end
  local calm = 0
  if algorithm == 'window' and #rates == 1 and rates[1].cell == 1 and get('share') == FULL_SHARE and get('seq') == 0
    and get('last') > 0 and get('until') <= time and get('from') <= now() and get('buried') <= get('last') then
    calm = math.min(get('idx') + RECORD_TIME_EVERY, get('exp') * 1000 - longest_window - 1002000)
  end
  set('calm', calm)
  local fields = {}
  for key in pairs(dirty) do
    fields[#fields + 1] = key
    fields[#fields + 1] = text(meta[key])
  end
  if ARGV[13] ~= stored_terms then
    fields[#fields + 1] = 'terms'
    fields[#fields + 1] = ARGV[13]
  end
  if fields[1] then redis.call('HSET', KEYS[1], unpack(fields)) end
  if renew_expiry then redis.call('PEXPIRE', KEYS[1], renew_expiry) end
end

-- The server's clock was set back: the limiter's continues from where it was.
local behind = get('idx') - time
if behind >= RECORD_TIME_EVERY then
  for _, key in ipairs({'off', 'until', 'changed'}) do set(key, get(key) - behind) end
  finish()
end

local far = get('hz') + longest_window
if get('last') - now() > far + MAX_LEEWAY or get('until') - time > far then
  -- an older version, which does not notice a step back, has booked meanwhile
  begin_edition(math.max(get('epoch') + 2, time), true)
  rebuilt = 1
  finish()
end

-- One rate

local function limit_of(rate) return math.max(1, math.floor(rate.limit * get('share') / FULL_SHARE)) end

local function floor_to_grid(at) return at - at % GRID end

local function ceil_to_grid(at) return at + -at % GRID end

local function interval_of(rate) return math.ceil((rate.window + rate.margin) / limit_of(rate)) end

local function cell_end(rate, at) return at + (rate.cell - at % rate.cell) % rate.cell end

local function newest_of(rate)
  return math.max(tonumber(redis.call('LINDEX', rate.ring, 0) or get('z:' .. rate.key)), get('b:' .. rate.key))
end

-- Count bookings that were set aside again, if slots were given back or the limit was raised.
local function recount_aside(rate)
  local total, aside = get('n:' .. rate.key), get('x:' .. rate.key)
  while aside > 0 and total < rate.limit do
    local back = redis.call('LINDEX', rate.ring, -2 * aside + 1)
    if not back then return end
    total, aside = total + tonumber(back), aside - 1
    set('n:' .. rate.key, total)
    set('x:' .. rate.key, aside)
  end
end

-- The earliest time at which the rate has room for so many units.
local function earliest_time(rate, units)
  if algorithm ~= 'window' then
    local burst = math.max(rate.burst, units)
    return get('tat:' .. rate.key) - (burst - units) * interval_of(rate)
  end
  recount_aside(rate)
  rate.oldest = nil
  local at, total, limit, read = get('z:' .. rate.key), get('n:' .. rate.key), limit_of(rate), get('x:' .. rate.key)
  while total + units > limit and total > 0 do
    local number = math.min(64, math.max(1, total + units - limit))
    local pairs_ = redis.call('LRANGE', rate.ring, -2 * (read + number), -2 * read - 1)
    if not pairs_[1] then break end
    read = read + number
    for i = #pairs_ - 1, 1, -2 do
      if total + units <= limit or total <= 0 then break end
      at, total = math.max(at, tonumber(pairs_[i])), total - tonumber(pairs_[i + 1])
      if not rate.oldest then rate.oldest = {pairs_[i], pairs_[i + 1]} end
    end
    if #pairs_ < 2 * number then break end
  end
  return at > 0 and at + rate.window + rate.margin or 0
end

local function add_to_rate(rate, at, units)
  at = floor_to_grid(at)
  if algorithm ~= 'window' then
    set('tat:' .. rate.key, math.max(get('tat:' .. rate.key), at) + units * interval_of(rate))
  else
    if not meta['n:' .. rate.key] and get('last') > 0 then set('b:' .. rate.key, get('last')) end
    local total, aside, length = get('n:' .. rate.key) + units, get('x:' .. rate.key)
    local stamp = cell_end(rate, at)
    local head = rate.cell > 1 and redis.call('LRANGE', rate.ring, 0, 1) or {}
    if head[1] and tonumber(head[1]) >= stamp then
      redis.call('LSET', rate.ring, 1, text(tonumber(head[2]) + units))
      length = redis.call('LLEN', rate.ring) / 2
    else
      length = redis.call('LPUSH', rate.ring, text(units), text(stamp)) / 2
      if length == 1 then total, aside, rate.oldest, renew_expiry = units, 0, nil, true end
    end
    local old = rate.oldest -- earliest_time() has read it
    local since
    while total > rate.limit and length - aside > 1 do -- set aside what later calls need not read
      old = old or redis.call('LRANGE', rate.ring, -2 * aside - 2, -2 * aside - 1)
      if total - tonumber(old[2]) < rate.limit then break end
      total, aside = total - tonumber(old[2]), aside + 1
      if aside == 1 then since = tonumber(old[1]) end
      old = nil
    end
    while aside > 0 do -- until their windows are over
      since = since or tonumber(redis.call('LINDEX', rate.ring, -2))
      if aside <= MAX_ASIDE and since > now() - rate.window then break end
      redis.call('LTRIM', rate.ring, 0, -3)
      set('z:' .. rate.key, since)
      aside, since = aside - 1, nil
    end
    rate.oldest = nil
    set('n:' .. rate.key, total)
    set('x:' .. rate.key, aside)
  end
end

local function remove_from_rate(rate, at, units)
  at, rate.oldest = floor_to_grid(at), nil
  if algorithm ~= 'window' then
    if at == get('last') then
      set('tat:' .. rate.key, get('tat:' .. rate.key) - units * interval_of(rate))
    end
  else
    local found = redis.call('LPOS', rate.ring, text(cell_end(rate, at)))
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

local function remove_units(at, units)
  for _, rate in ipairs(rates) do remove_from_rate(rate, at, units) end
end

local function first_slot(units)
  local bound, strictest = -math.huge, rates[1]
  for _, rate in ipairs(rates) do
    local one = earliest_time(rate, units)
    if one > bound then bound, strictest = one, rate end
  end
  local at = math.max(floor_to_grid(now()), ceil_to_grid(math.max(bound, get('from'), get('last') + 1)))
  if spaced and at > now() + 2 * TICK and algorithm == 'window' then
    at = math.max(at, ceil_to_grid(get('last') + units * interval_of(strictest)))
  end
  return at
end

-- The next unused number of a slot.
local function unused_number(base)
  local known = redis.call('ZREVRANGEBYSCORE', KEYS[4], text(base + GRID - 1), text(base), 'LIMIT', 0, 1)
  return known[1] and tonumber(string.match(known[1], '^%d+')) + 1 or base
end

-- Whether the slot was given back under this number.
local function was_given_back(at) return redis.call('ZSCORE', KEYS[4], text(at)) end

-- Record that the slot was given back.
local function mark_given_back(at)
  redis.call('ZADD', KEYS[4], text(at), text(at))
  redis.call('ZREMRANGEBYSCORE', KEYS[4], '-inf', '(' .. text(now() - longest_window))
  set('buried', math.max(get('buried'), at))
  renew_expiry = true
end

local function units_of(member) return tonumber(string.match(member, '^%d+')) end

-- The first slot given back that has enough units: its member and slot, or nil.
local function find_free_slot(units)
  if get('seq') == 0 then return end
  local some = redis.call('ZRANGEBYSCORE', KEYS[2], text(now()), '+inf', 'WITHSCORES', 'LIMIT', 0, MAX_EXAMINED)
  for i = 1, #some, 2 do
    local base = floor_to_grid(tonumber(some[i + 1]))
    if units_of(some[i]) >= units and unused_number(base) < base + GRID then return some[i], tonumber(some[i + 1]) end
  end
end

-- Book a slot that was given back. Reply: its new number.
local function take_free_slot(member, at, units)
  redis.call('ZREM', KEYS[2], member)
  local number = units_of(member)
  if number > units then
    redis.call('ZADD', KEYS[2], text(at), text(number - units) .. string.match(member, ':.*$'))
  end
  local taken = unused_number(floor_to_grid(at))
  redis.call('ZADD', KEYS[4], text(taken), text(taken) .. '+')
  set('buried', math.max(get('buried'), taken))
  renew_expiry = true
  return taken
end

local function remove_unused()
  if get('stood') > 0 then
    if redis.call('EXISTS', KEYS[5]) == 0 then
      set('stood', 0)
    else
      local before = '(' .. text(now() - margin)
      local gone = redis.call('ZRANGEBYSCORE', KEYS[5], '-inf', before, 'WITHSCORES', 'LIMIT', 0, MAX_REMOVED)
      for i = 1, #gone, 2 do
        redis.call('ZREM', KEYS[5], gone[i])
        remove_units(tonumber(gone[i + 1]), units_of(gone[i]))
      end
    end
  end
  if get('seq') == 0 then return end
  if redis.call('EXISTS', KEYS[2]) == 0 then return set('seq', 0) end
  local old = redis.call('ZRANGEBYSCORE', KEYS[2], '-inf', '(' .. text(now()), 'WITHSCORES', 'LIMIT', 0, MAX_REMOVED)
  for i = 1, #old, 2 do
    redis.call('ZREM', KEYS[2], old[i])
    remove_units(tonumber(old[i + 1]), units_of(old[i]))
  end
end

-- The last booking: it is in every ring, in some only as its cell.
local function newest_booking()
  local at = newest_of(rates[1])
  for _, rate in ipairs(rates) do at = math.min(at, newest_of(rate)) end
  return at
end

local function give_back(at, units)
  if algorithm ~= 'window' or floor_to_grid(at) ~= get('last') then
    set('seq', get('seq') + 1)
    redis.call('ZADD', KEYS[2], text(at), text(units) .. ':' .. text(get('seq')))
    renew_expiry = true
    return
  end
  remove_units(at, units)
  set('last', math.min(floor_to_grid(at), newest_booking()))
  while get('seq') > 0 do
    local top = redis.call('ZREVRANGE', KEYS[2], 0, 0, 'WITHSCORES')
    if not top[1] or floor_to_grid(tonumber(top[2])) ~= get('last') then return end
    redis.call('ZREM', KEYS[2], top[1])
    remove_units(get('last'), units_of(top[1]))
    set('last', math.min(get('last'), newest_booking()))
  end
end

-- In the line

local function add_to_line(at, units)
  redis.call('ZADD', KEYS[5], text(at), text(units) .. ':' .. text(at))
  set('stood', 1)
  renew_expiry = true
end

local function remove_from_line(at, units) return redis.call('ZREM', KEYS[5], text(units) .. ':' .. text(at)) == 1 end

local function take_from_line(since, latest, units)
  if get('stood') == 0 then return end
  local some = redis.call('ZRANGEBYSCORE', KEYS[5], text(since), text(latest), 'WITHSCORES', 'LIMIT', 0, MAX_EXAMINED)
  for i = 1, #some, 2 do
    if units_of(some[i]) == units then
      redis.call('ZREM', KEYS[5], some[i])
      return tonumber(some[i + 1])
    end
  end
end

-- in_line: 1 for a slot in the line, which has the edition plus one
local function format_booked(at, wait, more, in_line)
  return string.format('1 %.0f %.0f %.0f %.0f %.0f %.0f %.0f %d', at, wait, get('epoch') + in_line, get('off'), time + wait,
    rebuilt, more, in_line)
end

local function as_booked(at, in_line)
  local wait = time_until(floor_to_grid(at))
  return format_booked(at, wait, 0, in_line or 0)
end

local function raise_lowered_limit()
  if min_share == 0 or get('share') >= FULL_SHARE or time < get('changed') + adaptation_interval then return end
  local rate = rates[1]
  for _, other in ipairs(rates) do
    if other.window < rate.window then rate = other end
  end
  if get('spent') * 2 >= limit_of(rate) then
    set('share', math.min(FULL_SHARE, get('share') + math.ceil(FULL_SHARE / rate.limit)))
  end
  set('changed', time)
  set('spent', 0)
end

-- Book the first slot. One with leeway is booked for the latest time at which it may be used.
-- Reply, by spaces: 1, slot, wait, edition, off, time, rebuilt, leeway, in line; or 0, wait, edition, off
local function reserve()
  raise_lowered_limit()
  remove_unused()
  local member, at
  if leeway == 0 then member, at = find_free_slot(cost) end
  if not member then at = first_slot(cost) end
  local wait = time_until(floor_to_grid(at))
  if wait > amount and wait >= TICK then
    set('refused', get('refused') + 1)
    finish()
    return string.format('0 %.0f %.0f %.0f', wait, get('epoch'), get('off'))
  end
  local number
  if member then
    number = take_free_slot(member, at, cost)
  else
    leeway = math.min(leeway, MAX_LEEWAY)
    at = ceil_to_grid(at + leeway)
    number = at
    while at <= get('buried') do
      number = unused_number(at)
      if number < at + GRID then break end
      at = at + GRID
      number = at
    end
    for _, rate in ipairs(rates) do add_to_rate(rate, at, cost) end
    set('last', at)
  end
  if get('share') < FULL_SHARE then set('spent', get('spent') + cost) end
  local in_line = will_resume and wait > OPENS_BEFORE and leeway == 0
  if in_line then add_to_line(number, cost) end
  finish()
  return format_booked(number, wait, leeway, in_line and 1 or 0)
end

-- A new slot for one that was missed: see rate_resume.lua.
local function take_next_slot()
  -- a slot with less than half of its margin left would be missed again
  local since = slot > now() and slot or ceil_to_grid(now() - math.floor(margin / 2))
  local at = leeway == 0 and take_from_line(since, math.max(slot, now() + amount), cost)
  if not at then return reserve() end
  finish()
  return as_booked(at)
end

local function resume()
  if edition == get('epoch') + 1 then -- it is in the line: the first slot there that can still be used
    remove_unused()
    if slot > now() + OPENS_BEFORE then
      local member, better = find_free_slot(cost)
      if member and better < slot and remove_from_line(slot, cost) then
        better = take_free_slot(member, better, cost)
        mark_given_back(slot)
        give_back(slot, cost)
        slot = better
        add_to_line(slot, cost)
      end
      finish()
      return as_booked(slot, 1)
    end
    will_resume = true
    return take_next_slot()
  end
  will_resume = false
  if edition ~= get('epoch') or was_given_back(slot) then return reserve() end
  if slot > now() then
    remove_unused()
    local member, better = find_free_slot(cost)
    if member and better < slot then
      better = take_free_slot(member, better, cost)
      mark_given_back(slot)
      give_back(slot, cost)
      slot = better
    end
    finish()
    return as_booked(slot)
  end
  if now() - floor_to_grid(slot) <= margin then return as_booked(slot) end
  mark_given_back(slot)
  remove_units(slot, cost)
  return take_next_slot()
end
