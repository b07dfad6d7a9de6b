-- Grant free permits to the longest waiters that are alive: as short leases, which their first renewals extend to full
-- leases. Strictly in order: the first waiter blocks those behind it, even if their limits are greater, unless it is dead,
-- which is only checked for a caller whose limit leaves a permit free.
-- Reply: whether `self`, the caller, may take one: it is the first in the queue, or nobody is, and its limit leaves one
local function grant_free(self, wanted)
  local now, micros = clock()
  while true do
    local token, taken = redis.call('ZRANGE', KEYS[4], 0, 0)[1], redis.call('ZCARD', KEYS[1])
    if not token then return taken < wanted end
    local seen, channel, ttl, hold, limit, holder = waiter_of(token)
    local full = seen and taken >= tonumber(limit)
    if full and (token == self or taken >= wanted) then return false end
    if seen and token ~= self and is_alive(seen, channel, now) then
      if full then return false end
      local fence = tick(micros)
      admit(fence, now, token, ttl, hold, holder)
      wake(channel, token, fence, seen)
    end
    leave_queue(token)
    if token == self then return true end
  end
end
