-- Counts for the scripts of rate limits, if their mode (5) has a '+'.
-- use: counts
local LIMITER = string.find(ARGV[5], '+', 1, true) and string.gsub(ARGV[6], ':tenant:.*$', ':tenant') or nil
count_at(KEYS[3], time / 1000)

local function count_limit(event)
  if LIMITER then count('limit.' .. event, LIMITER) end
end

-- Count the reply of a booking script.
local function count_reply(reply)
  if not LIMITER or string.byte(reply) == 50 then return end -- 2: other terms are in force
  local wait = tonumber(string.match(reply, '^1 %S+ (%S+)'))
  if not wait then
    count_limit('refused')
  elseif wait < 1000 then
    count_limit('granted')
  else
    count_time('limit.waited', LIMITER, math.floor(wait / 1000))
  end
end
