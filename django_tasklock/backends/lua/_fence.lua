-- A fence, as text: the clock in microseconds, or one more than before where that is greater. An older snapshot, or a
-- flush, sets the counter back but not the clock, and a clock that is set back finds the counter.
-- KEYS: 3 fence counter
local function tick(micros)
  local last = tonumber(redis.call('SET', KEYS[3], micros, 'GET'))
  if last and last >= tonumber(micros) then
    micros = string.format('%.0f', last + 1)
    redis.call('SET', KEYS[3], micros)
  end
  return micros
end

