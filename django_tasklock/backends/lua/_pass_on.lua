-- Put back into the queue who was taken from it, perhaps the last.
local function put_back(head)
  redis.call('ZADD', KEYS[4], head[2], head[1])
  redis.call('PEXPIRE', KEYS[4], 30000)
end

-- Hand a free lock to the longest waiter that is still there: a short claim, which its
-- first renewal makes a whole lease. A waiter whose channel nobody hears is dead: next.
-- `head`: who was taken from the queue already, if anybody.
-- Reply: the token that has the lock now (`self` if that is the caller's turn), or nil; and its rank.
local function pass_on(self, head)
  local now, micros = clock()
  while true do
    head = head or redis.call('ZPOPMIN', KEYS[4])
    if not head[1] then return nil end
    local token, channel, claim, hold, holder = string.match(head[1], '^(%S+) (%S+) (%d+) (%d+) (.*)$')
    if token then -- what cannot be read is nobody's place
      local fence = token ~= self and tick(micros)
      local there = not fence or tell(token, channel, token .. ' ' .. fence, now)
      if there == nil then -- leave the lock free, the waiters look by themselves
        put_back(head)
        return nil
      end
      redis.call('HDEL', SEEN, token)
      if fence and there then grant(fence, now, token, claim, hold, holder, waited_since(head[2], now)) end
      if there then return token, head[2] end
    end
    head = nil
  end
end

