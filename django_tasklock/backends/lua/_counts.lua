-- Counting, with what was done: how often and how long, by event and kind; and the last holds of each name.
--
-- counts:<hour> (a hash): "event|kind", how often. Of what has a duration "event:bucket|kind", and in one number how
--   often (from the 13th digit on) and the milliseconds together: one command, not two. Where that would not do,
--   "n|event:bucket|kind" and "ms|event:bucket|kind" have the two apart.
-- hours (a set): those that are not in the totals yet. hour:<hour>: one that is, kept for two weeks.
-- totals (a hash): what was in those hours; the fields with a duration are apart.
-- held:<name>: the value of a lock that is counted, which outlives that lock: so whoever finds the end of its lease
--   knows what it was. past:<name> (a list): the last holds, the latest first; past (sorted set): names by the last.
-- Nothing in here may fail what it counts: hence pcall.

local HOUR_KEPT, PAST_KEPT, NAMES, FIELDS, OTHERS = 1209600000, 604800000, 10000, 4000, '(others)'
local BOUNDS = {5, 25, 100, 500, 1000, 5000, 15000, 60000, 300000, 900000, 3600000}
local ROOT, COUNTS, COUNTED_AT

-- To be called first. `any`: the index, or the fence counter; now in ms.
local function count_at(any, now)
  ROOT, COUNTED_AT = string.sub(any, 1, -6), now
  COUNTS = ROOT .. 'counts:' .. math.floor(now / 3600000)
end

local function apart(from, to, field, value)
  if #value < 13 or string.find(field, '^n|') or string.find(field, '^ms|') then
    redis.pcall('HINCRBY', to, field, value)
  else
    redis.pcall('HINCRBY', to, 'n|' .. field, string.sub(value, 1, -13))
    redis.pcall('HINCRBY', to, 'ms|' .. field, string.format('%.0f', tonumber(string.sub(value, -12))))
  end
end

-- Let the totals have the hours that are over. What comes to one of them later, because the clock was set back, is
-- added to it as well.
local function roll(current)
  for _, hour in ipairs(redis.call('SMEMBERS', ROOT .. 'hours')) do
    if hour ~= current then
      local from, kept = ROOT .. 'counts:' .. hour, ROOT .. 'hour:' .. hour
      local flat = redis.call('HGETALL', from)
      for i = 1, #flat, 2 do
        if flat[i] ~= 'about' then
          apart(from, ROOT .. 'totals', flat[i], flat[i + 1])
          apart(from, kept, flat[i], flat[i + 1])
        end
      end
      redis.call('DEL', from)
      redis.call('PEXPIRE', kept, HOUR_KEPT)
      redis.call('SREM', ROOT .. 'hours', hour)
    end
  end
end

local count

-- The first of its field in this hour: is the hour new, are there too many kinds?
local function first(event, kind, by)
  if redis.pcall('HSETNX', COUNTS, 'about', 'What django_tasklock has counted within this hour, see docs/metrics.md') == 1 then
    -- so long a text that it is no list to search: redis.conf, hash-max-listpack-value
    local hour = string.format('%.0f', math.floor(COUNTED_AT / 3600000))
    redis.pcall('SADD', ROOT .. 'hours', hour)
    roll(hour)
  end
  if kind ~= OTHERS and redis.call('HLEN', COUNTS) > FIELDS then
    redis.call('HDEL', COUNTS, event .. '|' .. kind)
    count(event, OTHERS, by)
  end
end

-- What to look at when a count was raised to `n` by `by`, now and then.
local function looked(n, event, kind, by)
  if type(n) ~= 'number' then return end -- the key is something else's
  if n == tonumber(by) then return first(event, kind, by) end
  if n >= 1e17 and string.sub(event, 1, 2) ~= 'n|' and string.sub(event, 1, 3) ~= 'ms|' then
    local field = event .. '|' .. kind
    apart(COUNTS, COUNTS, field, redis.call('HGET', COUNTS, field))
    redis.call('HDEL', COUNTS, field)
  end
end

function count(event, kind, by)
  by = by or '1'
  looked(redis.pcall('HINCRBY', COUNTS, event .. '|' .. kind, by), event, kind, by)
end

-- Count something that took so many ms.
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

-- Keep a hold that is over among the last ones of its name.
local function note(name, value, how, at)
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

-- Count how a hold ended, whose value is given. `at`: when, ms.
local function count_end(name, value, how, at)
  local kind = string.match(value, '^{"token":"[^"]*","holder":{"kind":"([^"]*)"')
  if not kind then return end
  local since = tonumber(string.match(string.sub(value, -128), '"at":(%d+),[^{}]*$'))
  if how == 'released' then
    count_time(how, kind, at - (since or at))
  else
    count(how, kind)
  end
  if how ~= 'released' or since and at - since >= 1000 then note(name, value, how, at) end
end

-- Count the end of a lock that is not there any more and was not given back, once. `score`: the end of its lease.
local function count_gone(name, score)
  local value = redis.pcall('GETDEL', ROOT .. 'held:' .. name)
  if type(value) ~= 'string' then return end -- it was not counted, or has been
  local at = tonumber(score) or COUNTED_AT
  local early = at > COUNTED_AT
  count_end(name, value, early and 'deleted' or 'expired', early and COUNTED_AT or at)
end

-- Note a lock that is granted just now: its value outlives it. `waited` in ms: nil, it was not waited for.
local function count_grant(name, value, kind, waited)
  redis.pcall('SET', ROOT .. 'held:' .. name, value)
  if waited then count_time('waited', kind, waited) else count('acquired', kind) end
end

local function name_of(key)
  return string.sub(key, #ROOT + 1)
end
