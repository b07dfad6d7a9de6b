"""Several locks in one script: each script runs the script for a single lock on all of them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

from django_tasklock.backends.redis.keys import Layout, grant_in, is_granted
from django_tasklock.backends.redis.script import Script, bulk, load
from django_tasklock.types import AcquireRequest, Busy, Grant, Record

# KEYS: index, fence counter, then for each lock its own key, queue and seen. `at(i)` sets KEYS to those of one lock, in
# the order that its script expects.
_FOR_EACH = """
local n, all = (#KEYS - 2) / 3, {}
for i = 3, #KEYS do all[i - 2] = KEYS[i] end
for i = #KEYS, 6, -1 do KEYS[i] = nil end
KEYS[3], KEYS[2] = KEYS[2], KEYS[1]
local function at(i)
  KEYS[1], KEYS[4], KEYS[5] = all[3 * i - 2], all[3 * i - 1], all[3 * i]
end
"""
_RELEASE = f"local function release()\n{load('release', 0, 0).body}\nend\n"

# Reply: as that of acquire.lua, with the greatest fence; if one is busy, its number and the reply for it.
_ACQUIRE_ALL = f"""
local function acquire()
{load("acquire", 0, 0).body}
end
{_RELEASE}{_FOR_EACH}
local token, ttl, former = ARGV[1], ARGV[2], ARGV[6] or ''
local function has(value, whose)
  return value and string.sub(value, 11, 11 + #whose) == whose .. '"'
end
local function refuse(which, reply)
  ARGV[2] = '' -- for release.lua: no queue entry
  for i = 1, n do
    at(i)
    if has(redis.call('GET', KEYS[1]), token) then release() end
  end
  ARGV[2] = ttl
  at(which)
  reply = reply or acquire()
  table.insert(reply, 1, which)
  return reply
end
for i = 1, n do -- check all before any is taken
  at(i)
  local value = redis.call('GET', KEYS[1])
  if value and not has(value, token) and (former == '' or not has(value, former)) then return refuse(i) end
end
local greatest, expired = 0, 0
for i = 1, n do
  at(i)
  local reply = acquire()
  if type(reply) == 'number' then reply = {{reply, 0}} end
  if #reply > 2 then -- it went to a waiter
    reply[4] = reply[4] + expired
    return refuse(i, reply)
  end
  greatest, expired = math.max(greatest, reply[1]), expired + reply[2]
end
return expired > 0 and {{greatest, expired}} or greatest
"""
_RELEASE_ALL = f"""{_RELEASE}{_FOR_EACH}
local reply = {{}}
for i = 1, n do
  at(i)
  reply[i] = release()
end
return reply
"""
_EXTEND_ALL = f"""
local function extend()
{load("extend", 0, 0).body}
end
{_FOR_EACH}
local reply = 1
for i = 1, n do
  at(i)
  reply = math.min(reply, extend())
end
return reply
"""
_GET_ALL = f"""
local function get()
{load("get", 0, 0).body}
end
{_FOR_EACH}
local reply = {{}}
for i = 1, n do
  at(i)
  KEYS[2] = KEYS[4]
  reply[i] = get()
end
return reply
"""


class SeveralScripts:
    """Scripts, their encoded arguments and the decoding of their replies, for several locks of one prefix."""

    def __init__(self, layout: Layout) -> None:
        self._layout = layout

    def _keys(self, names: Sequence[str]) -> bytes:
        each = (self._layout.lock(name) + self._layout.waiting(name) for name in names)
        return self._layout.index + self._layout.fence + b"".join(each)

    def acquiring(self, names: Sequence[str], request: AcquireRequest) -> tuple[Script, bytes]:
        """Return the script that takes all locks or none, with its keys and arguments."""
        arguments = self._layout.arguments(request) + bulk("") + bulk(request.supersedes)
        return _script(_ACQUIRE_ALL, len(names), 6), self._keys(names) + arguments

    def answer(self, names: Sequence[str], request: AcquireRequest, reply: Any) -> Grant | Busy:
        """Return the result in a reply of the acquiring script."""
        if is_granted(reply):
            return grant_in(reply, request.ttl_ms)
        name = names[reply[0] - 1]
        return self._layout.busy(name, reply[1:])._replace(name=name)

    def releasing(self, names: Sequence[str], token: str) -> tuple[Script, bytes]:
        """Return the script that releases them. It replies with that of ``release.lua`` for each."""
        return _script(_RELEASE_ALL, len(names), 1), self._keys(names) + bulk(token)

    def extending(self, names: Sequence[str], token: str, ttl: int, hold: int) -> tuple[Script, bytes]:
        """Return the script that extends them. It replies 1 if ``token`` holds all of them, else 0."""
        return _script(_EXTEND_ALL, len(names), 3), self._keys(names) + bulk(token) + bulk(ttl) + bulk(hold)

    def getting(self, names: Sequence[str]) -> tuple[Script, bytes]:
        """Return the script that reads them."""
        return _script(_GET_ALL, len(names), 0), self._keys(names)

    def found(self, names: Sequence[str], replies: Sequence[Any]) -> list[Record | None]:
        """Return the records in a reply of the reading script."""
        pairs = zip(names, replies, strict=True)
        return [None if reply is None else self._layout.record(name.encode(), reply) for name, reply in pairs]


@cache
def _script(body: str, locks: int, arguments: int) -> Script:
    keys = 2 + 3 * locks
    return Script(body, keys + arguments, keys)
