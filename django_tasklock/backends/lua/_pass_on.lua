-- Put the popped entry back into the queue, which may be empty by now.
local function put_back(head)
  redis.call('ZADD', KEYS[4], head[2], head[1])
  redis.call('PEXPIRE', KEYS[4], 30000)
end

-- Hand a free lock to the longest waiter that is alive: as a short lease, which its first
-- renewal extends to a full lease. A waiter whose channel has no subscriber is dead.
-- `head`: the entry that was popped from the queue already, if any.
-- Reply: the token that has the lock now (`self` if it is the caller's turn), or nil.
local function pass_on(self, head)
  local now, micros = clock()
  while true do
    head = head or redis.call('ZPOPMIN', KEYS[4])
    if not head[1] then return nil end
    local token, channel, ttl, hold, holder = string.match(head[1], '^(%S+) (%S+) (%d+) (%d+) (.*)$')
    if token then -- skip an unreadable entry
      local fence = token ~= self and tick(micros)
      local there = not fence or notify(token, channel, token .. ' ' .. fence, now)
      if there == nil then -- leave the lock free: the waiters poll
        put_back(head)
        return nil
      end
      redis.call('HDEL', SEEN, token)
      if fence and there then grant(fence, now, token, ttl, hold, holder) end
      if there then return token end
    end
    head = nil
  end
end

