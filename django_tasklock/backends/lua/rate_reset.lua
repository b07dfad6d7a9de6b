-- Forget what was used and booked, a stop and the share too; who sleeps books again, by the new edition.
-- KEYS, ARGV: see _rates.lua
-- Reply: the edition
-- use: rates
begin(math.max(get('epoch') + 2, time), false)
finish()
return get('epoch')
