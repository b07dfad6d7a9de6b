-- Earlier versions write two more indexes, which are not read any more. Their workers may still run beside ours, so the
-- indexes expire a day after this is first called; if they are written again later, again a day after that.
local function expire_former(index)
  for _, former in ipairs({'since', 'until'}) do
    local key = string.gsub(index, 'index$', former)
    if redis.call('PTTL', key) == -1 then redis.call('PEXPIRE', key, 86400000) end
  end
end

