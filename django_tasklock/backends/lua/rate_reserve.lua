-- Book the first place for some units.
-- KEYS, ARGV: see _rates.lua; 1 cost, 4 how long it may take
-- Reply: {1, slot, wait, epoch, off, time, rebuilt, leeway}, or refused: {0, wait, epoch, off}
return reserve()
