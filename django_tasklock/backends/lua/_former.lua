-- Earlier versions write two more indexes, which nothing reads here. Their workers may still run beside ours, so they
-- end a day after the first of us is met; what is written to them later is given a day as well.
local function let_lapse(index)
  for _, former in ipairs({'since', 'until'}) do
    local key = string.gsub(index, 'index$', former)
    if redis.call('PTTL', key) == -1 then redis.call('PEXPIRE', key, 86400000) end
  end
end

