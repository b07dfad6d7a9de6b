-- Counts, incremented by the operation that they count: number and duration by event and kind; and past holds by name.
--
-- counts:now (a hash): the counts of this hour, by "event|kind". An event with a duration is "event:bucket|kind", with
--   the number (from the 13th digit on) and the milliseconds in one value: one command, not two. If these do not fit,
--   they are in "n|event:bucket|kind" and "ms|event:bucket|kind". The key expires at twice the ms from 1970 to the
--   beginning of its hour, so its PTTL shows whether the hour is over, and the time. TIME costs three times as much.
-- counts:<hour> (a hash): the same, by releases that know the hour from the fence of their lock, without reading the
--   time unless a field is new. Earlier versions have all counts in these.
-- hours (a set): "now", and those <hour> that are not in the totals yet. hour:<hour>: one that is, kept for two weeks.
-- totals (a hash): the sums of those hours; number and duration are in separate fields.
-- open:<name>: a copy of the value of a counted lock, which outlives it: so when its lease is found to have ended, its
--   holder is known. Its acquisition is counted at its end, as "done:bucket", acquired and released in one; or before,
--   when the counts are read, and then the copy is renamed to held:<name>. So "acquired" has only acquisitions that
--   were read or did not end in a release; after a wait or a transfer it is lowered by one, which the end will add.
-- past:<name> (a list): past holds, the latest first; past (sorted set): names by their latest.
-- Counting must not make the operation fail: hence pcall.

local HOUR, HOUR_KEPT, PAST_KEPT = 3600000, 1209600000, 604800000
local NAMES, FIELDS, OTHERS = 10000, 4000, '(others)'
local BOUNDS = {5, 25, 100, 500, 1000, 5000, 15000, 60000, 300000, 900000, 3600000}
-- so long that the hash is no listpack, which is searched linearly: redis.conf, hash-max-listpack-value
local ABOUT = 'What django_tasklock has counted within this hour, see docs/metrics.md'
local ROOT, COUNTS, COUNTED_AT, READY

-- To be called first. `any`: the key of the index or of the fence counter; now in ms.
local function count_at(any, now)
  ROOT, COUNTED_AT, READY = string.sub(any, 1, -6), now, false
  COUNTS = ROOT .. 'counts:now'
end

-- Add a value, number and duration in separate fields.
local function add_count(from, to, field, value)
  if #value < 13 or string.find(field, '^n|') or string.find(field, '^ms|') then
    redis.pcall('HINCRBY', to, field, value)
  else
    redis.pcall('HINCRBY', to, 'n|' .. field, string.sub(value, 1, -13))
    redis.pcall('HINCRBY', to, 'ms|' .. field, string.format('%.0f', tonumber(string.sub(value, -12))))
  end
end

-- Move the counts of an hour to hour:<hour> and to the totals.
local function fold(from, hour)
  local kept, totals, flat = ROOT .. 'hour:' .. hour, ROOT .. 'totals', redis.call('HGETALL', from)
  local full = redis.call('HLEN', totals) > FIELDS -- new kinds are added to the others
  for i = 1, #flat, 2 do
    local field = flat[i]
    if field ~= 'about' then
      add_count(from, kept, field, flat[i + 1])
      if full and redis.call('HEXISTS', totals, field) + redis.call('HEXISTS', totals, 'n|' .. field) == 0 then
        field = (string.match(field, '^ms|[^|]*|') or string.match(field, '^n|[^|]*|') or string.match(field, '^[^|]*|'))
          .. OTHERS
      end
      add_count(from, totals, field, flat[i + 1])
    end
  end
  redis.call('DEL', from)
  redis.call('PEXPIRE', kept, HOUR_KEPT)
end

local function hour_of(ms)
  return string.format('%.0f', math.floor(ms / HOUR))
end

-- A time within the hour of counts:now. `left`: the ms before that expires.
local function running(left)
  return left < 0 and COUNTED_AT or (COUNTED_AT + left + HOUR) / 2 -- in the middle: the clock goes on during a script
end

-- Move the hours that are over to the totals.
local function end_hours_before(hour)
  for _, other in ipairs(redis.call('SMEMBERS', ROOT .. 'hours')) do
    local key = ROOT .. 'counts:' .. other
    local ended = other == 'now' and hour_of(running(redis.call('PTTL', key))) or other
    if ended ~= hour and redis.call('TYPE', key).ok ~= 'string' then
      fold(key, ended)
      redis.call('SREM', ROOT .. 'hours', other)
    end
  end
end

-- Make sure that counts:now is of the current hour.
local function get_ready()
  READY = true
  local left = redis.pcall('PTTL', COUNTS)
  if left > COUNTED_AT - 2 * HOUR and left <= COUNTED_AT then return end
  if left ~= -2 then
    if redis.pcall('TYPE', COUNTS).ok ~= 'hash' then return end -- not ours
    fold(COUNTS, hour_of(running(left)))
  end
  local hour = hour_of(COUNTED_AT)
  end_hours_before(hour)
  redis.pcall('HSETNX', COUNTS, 'about', ABOUT)
  redis.pcall('PEXPIREAT', COUNTS, string.format('%.0f', 2 * hour * HOUR))
  redis.pcall('SADD', ROOT .. 'hours', 'now') -- earlier versions read it
end

local count

-- For a new field of this hour: if there are too many kinds, count it as one of the others.
local function check_kinds(event, kind, by)
  if kind ~= OTHERS and redis.call('HLEN', COUNTS) > FIELDS then
    redis.call('HDEL', COUNTS, event .. '|' .. kind)
    count(event, OTHERS, by)
  end
end

-- After a count was raised to `n` by `by`: check for a new field, and for one that is too large.
local function check_count(n, event, kind, by)
  if type(n) ~= 'number' then return end -- not our key
  if n == tonumber(by) then return check_kinds(event, kind, by) end
  if n >= 1e17 and string.sub(event, 1, 2) ~= 'n|' and string.sub(event, 1, 3) ~= 'ms|' then
    local field = event .. '|' .. kind
    add_count(COUNTS, COUNTS, field, redis.call('HGET', COUNTS, field))
    redis.call('HDEL', COUNTS, field)
  end
end

function count(event, kind, by)
  by = by or '1'
  if not READY then get_ready() end
  local n = redis.pcall('HINCRBY', COUNTS, event .. '|' .. kind, by)
  check_count(n, event, kind, by)
  return type(n) == 'number'
end

-- The same for `counts`, the hash of the hour that the caller has assumed.
local function check_hour_count(n, counts, field, by)
  if type(n) ~= 'number' then return end -- not our key
  local event, kind = string.match(field, '^([^|]*)|(.*)$')
  local hour = hour_of(COUNTED_AT)
  if counts ~= ROOT .. 'counts:' .. hour then -- that hour is over, or wrong
    if n ~= tonumber(by) then return end
    redis.call('HDEL', counts, field)
    count(event, kind, by)
    return
  end
  if redis.pcall('SADD', ROOT .. 'hours', hour) == 1 then
    end_hours_before(hour)
    redis.pcall('HSETNX', counts, 'about', ABOUT)
  end
  COUNTS, READY = counts, true
  check_count(n, event, kind, by)
end

-- Count an event that took `ms`.
local function count_time(event, kind, ms)
  local bucket = 0
  ms = math.max(0, ms)
  for i, bound in ipairs(BOUNDS) do
    if ms > bound then bucket = i end
  end
  event = event .. ':' .. bucket
  if ms < 3600000 then return count(event, kind, string.format('1%012.0f', ms)) end
  count('n|' .. event, kind)
  count('ms|' .. event, kind, string.format('%.0f', ms))
end

-- Add a hold that has ended to the history of its name.
local function record_hold(name, value, how, at)
  local most = tonumber(string.match(value, '"past":(%d+)') or 10)
  if most == 0 then return end
  local past, names = ROOT .. 'past:' .. name, ROOT .. 'past'
  local rest = string.match(value, '^{"token":"[^"]*",(.*)$')
  if not rest or #rest > 4096 then return end
  redis.pcall('LPUSH', past, '{"how":"' .. how .. '","end":' .. string.format('%.0f', at) .. ',' .. rest)
  redis.pcall('LTRIM', past, 0, most - 1)
  redis.pcall('PEXPIRE', past, PAST_KEPT)
  if redis.pcall('ZADD', names, string.format('%.0f', COUNTED_AT), name) == 1 then
    local old = redis.pcall('ZCARD', names) > NAMES and redis.pcall('ZPOPMIN', names)
    if old and old[1] then redis.pcall('DEL', ROOT .. 'past:' .. old[1]) end
  end
end

local function kind_and_time(value)
  local kind = string.match(value, '^{"token":"[^"]*","holder":{"kind":"([^"]*)"')
  return kind, tonumber(string.match(string.sub(value, -128), '"at":(%d+),[^{}]*}$'))
end

-- Count an acquisition in its hour. Reply: whether that succeeded.
local function count_acquired(kind, since)
  if not READY then get_ready() end
  local hour = since and math.floor(since / HOUR)
  if not hour or hour >= math.floor(COUNTED_AT / HOUR) or COUNTED_AT - since > HOUR_KEPT then
    return count('acquired', kind)
  end
  local kept, field = ROOT .. 'hour:' .. string.format('%.0f', hour), 'acquired|' .. kind
  if type(redis.pcall('HINCRBY', ROOT .. 'totals', field, 1)) ~= 'number' then return false end
  redis.pcall('HINCRBY', kept, field, 1)
  redis.pcall('PEXPIRE', kept, HOUR_KEPT)
  return true
end

-- Count the end of the hold with this value. `at`: its time, ms. `open`: count its acquisition too.
local function count_end(name, value, how, at, open)
  local kind, since = kind_and_time(value)
  if not kind then return end
  if how == 'released' and open and since and math.floor(since / HOUR) == math.floor(COUNTED_AT / HOUR) then
    count_time('done', kind, at - since)
  else
    if open then count_acquired(kind, since) end
    if how == 'released' then count_time(how, kind, at - (since or at)) else count(how, kind) end
  end
  if how ~= 'released' or since and at - since >= 1000 then record_hold(name, value, how, at) end
end

-- Delete the copy of a lock that ends. Reply: whether its acquisition must be counted; also if there is no copy.
local function delete_copy(name)
  return redis.pcall('DEL', ROOT .. 'open:' .. name) == 1 or redis.pcall('DEL', ROOT .. 'held:' .. name) == 0
end

-- Count, once, the end of a lock that is missing and was not released. `score`: the end of its lease.
local function count_gone(name, score)
  local value = redis.pcall('GETDEL', ROOT .. 'open:' .. name)
  local open = type(value) == 'string'
  if not open then value = redis.pcall('GETDEL', ROOT .. 'held:' .. name) end
  if type(value) ~= 'string' then return end -- not counted, or already
  local at = tonumber(score) or COUNTED_AT
  local early = at > COUNTED_AT
  count_end(name, value, early and 'deleted' or 'expired', early and COUNTED_AT or at, open)
end

-- Store the copy of a lock that is granted now. `waited` in ms; nil: it has not waited; -1: it follows an earlier hold.
local function count_grant(name, value, kind, waited)
  local open = ROOT .. 'open:' .. name
  local former = redis.pcall('GET', open)
  if type(former) == 'string' then
    local earlier, since = kind_and_time(former)
    if earlier then count_acquired(earlier, since) end
  end
  redis.pcall('DEL', ROOT .. 'held:' .. name)
  redis.pcall('SET', open, value)
  if not waited then return end
  if waited == -1 then count('transferred', kind) else count_time('waited', kind, waited) end
  count('acquired', kind, '-1')
end

local function name_of(key)
  return string.sub(key, #ROOT + 1)
end
