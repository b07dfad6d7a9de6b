-- A new fence, as text: the time in microseconds, or the last fence plus one if that is greater. An older snapshot or a
-- flush sets the counter back, but not the clock; if the clock is set back, the counter is not.
-- KEYS: 3 fence counter
local function tick(micros)
  local last = tonumber(redis.call('SET', KEYS[3], micros, 'GET'))
  if last and last >= tonumber(micros) then
    micros = string.format('%.0f', last + 1)
    redis.call('SET', KEYS[3], micros)
  end
  return micros
end

