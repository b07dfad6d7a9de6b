-- Hand a free lock to the longest waiter that is alive: as a short lease, which its first renewal extends to a full one.
-- Reply: the token that has the lock now, or nil; `self` is not granted it, because it is the caller, whose turn it is
local function pass_on(self)
  while true do
    local token = redis.call('ZPOPMIN', KEYS[4])[1]
    if not token then return nil end
    local seen, channel, ttl, hold, _, holder = waiter_of(token)
    redis.call('HDEL', WAITERS, token)
    if token == self then return token end
    local now, micros = clock()
    if seen and is_alive(seen, channel, now) then
      local fence = tick(micros)
      redis.call('ZADD', KEYS[2], now + ttl, KEYS[1])
      grant(fence, now, token, ttl, hold, holder)
      wake(channel, token, fence, seen)
      return token
    end
  end
end

