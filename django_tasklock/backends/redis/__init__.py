"""Locks in Redis or Valkey: one script per operation, one round trip."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from django_tasklock.backends.contract.lists import Counts, Which
from django_tasklock.backends.contract.stores import DAY, LockStore
from django_tasklock.backends.redis.client import Client
from django_tasklock.backends.redis.cluster import ClusterClient, is_cluster
from django_tasklock.backends.redis.keys import KEPT, SHOWN, Layout, grant_in, is_granted, record
from django_tasklock.backends.redis.location import pool_of
from django_tasklock.backends.redis.permits import RedisPermits
from django_tasklock.backends.redis.rates import RedisRates
from django_tasklock.backends.redis.script import Script, load
from django_tasklock.backends.redis.wake import Listener, QueueStore
from django_tasklock.conf import Settings, expiring
from django_tasklock.names import tagged
from django_tasklock.types import AcquireRequest, Busy, Ending, Grant, Record, Released, Renewal, RenewalResult

__all__ = ["RedisBackend"]

ACQUIRE = load("acquire")
RELEASE = load("release")
EXTEND = load("extend")
RENEW = load("renew")
GET = load("get")
REMOVE = load("remove")
LIST = load("list")
COUNTS = load("counts")
ORPHANED = load("orphaned")
CONDITION = load("condition")
ASK_RELEASE = load("ask_release")
SET_EXPIRY = load("set_expiry")
PRUNE = load("prune")
SCAN = load("scan")
NEXT_NUMBER = load("next_number")
ORDER = load("order")
FLAG = load("flag")
NEWEST = load("newest")
TALLY = load("tally")
_RELEASE_AND_MARK = f"""
local function release()
{RELEASE.body}
end
local mark, flag = table.remove(KEYS), table.remove(KEYS)
if ARGV[4] ~= '0' then
  redis.call('DEL', mark) -- see even_if_full
  redis.call('SET', mark, 1, 'PX', ARGV[4])
end
local reply = release()
if reply == 1 and ARGV[3] == '1' then return 1 + redis.call('DEL', flag) end
return reply
"""
RELEASE_AND_MARK = Script(_RELEASE_AND_MARK)
"""``release.lua``, which also leaves a mark, and clears the flag of a lock that was held: the reply is 2 if it was set.
KEYS: 6 the flag, 7 the mark. ARGV: 3 '1': clear the flag, 4 the mark's ttl in ms (0: none)."""

RENEWAL_RESULTS = (RenewalResult.LOST, RenewalResult.RENEWED, RenewalResult.ASKED)  # by the code in the script's reply


class RedisBackend(QueueStore, LockStore):
    """The production store.

    Limits: a failover to a replica, a flush or an eviction loses locks while their holders
    run; then only a guarded row refuses stale writes. ``cache.clear()`` of a cache in the
    same database is such a flush, so give the locks a database of their own.

    A Redis user for the locks needs ``~task_lock:* ~task_lock#* &task_lock#* +@read +@write
    +@scripting +@pubsub +@connection +time``; without the channels its waiters poll.
    """

    keeps_order = True
    layout: Layout
    permits: RedisPermits
    rates: RedisRates
    JOIN = ACQUIRE
    LEAVE = RELEASE

    def __init__(self, settings: Settings) -> None:
        self.location = settings.location
        clustered = is_cluster(settings.location)
        self.layout = Layout(tagged(settings.prefix) if clustered else settings.prefix)
        location, prefix = settings.location, self.layout.prefix
        self.client = ClusterClient(location, prefix) if clustered else Client(pool_of(location))
        self.listener = Listener(self.client, self.layout.new_channel)
        self.permits = RedisPermits(self)
        self.rates = RedisRates(self)

    def acquire(self, request: AcquireRequest) -> Grant | Busy:
        keys, arguments = self.layout.keys(request.name), self.layout.arguments(request)
        return self.answer(request, self.client.run(ACQUIRE, keys, arguments)[0])

    def answer(self, request: AcquireRequest, reply: Any) -> Grant | Busy:
        """Return the result in a reply of ``acquire.lua``."""
        if is_granted(reply):
            return grant_in(reply, request.ttl_ms)
        return self.layout.busy(request.name, reply)

    def release(self, name: str, token: str) -> Released:
        return verdict(*self.client.run(RELEASE, self.layout.keys(name), [token]))

    def release_and_mark(self, name: str, token: str, mark: str, ttl: int, *, clear: bool) -> Ending:
        keys = [*self.layout.keys(name), self.layout.flag(name), self.layout.flag(mark)]
        reply, doubt = self.client.run(RELEASE_AND_MARK, keys, [token, "", int(clear), ttl if mark else 0])
        flagged = None if reply < 1 else reply > 1
        # The lost reply had the flag: assume that it was set.
        return Ending(verdict(reply, doubt), (doubt or flagged) if clear else None, bool(mark))

    def extend(self, name: str, token: str, ttl: int, hold: int) -> bool:
        keys = [self.layout.lock(name), self.layout.index]
        return bool(self.client.run(EXTEND, keys, [token, ttl, hold])[0])

    def renew(self, batch: Sequence[Renewal]) -> list[RenewalResult]:
        keys = [self.layout.index, *(self.layout.lock(item.name) for item in batch)]
        arguments: list[str | int] = [argument for item in batch for argument in (item.token, item.ttl)]
        return [RENEWAL_RESULTS[code] for code in self.client.run(RENEW, keys, arguments)[0]]

    def get(self, name: str) -> Record | None:
        keys = [self.layout.lock(name), self.layout.queue + name]
        return self._found(name, self.client.run(GET, keys)[0])

    def _found(self, name: str, reply: Any) -> Record | None:
        return None if reply is None else self.layout.record(name.encode(), reply)

    def records(self, which: Which = "live", *, offset: int = 0, limit: int = 1000) -> list[Record]:
        asked = listing(self.layout, which, offset, limit)
        while not (reply := self.client.run(LIST, [self.layout.index], asked)[0])[0]:
            pass  # many wrong entries of the index were corrected, and there may be more
        return listed(self.layout, reply)

    def get_orphaned(self, name: str) -> Record | None:
        return orphan(name, self.client.run(ORPHANED, [self.layout.lock(name), self.layout.index])[0])

    def counts(self) -> Counts:
        return Counts(*self.client.run(COUNTS, [self.layout.index], [expiring()])[0])

    def _condition(self) -> tuple[int | None, str | None]:
        clock, policy = self.client.run(CONDITION, [])[0]
        return int(clock), policy.decode()

    def ask_release(self, name: str, token: str) -> bool:
        return bool(token) and bool(self.client.run(ASK_RELEASE, [self.layout.lock(name)], [token])[0])

    def set_expiry(self, name: str, token: str, ttl: int) -> bool:
        return bool(self.client.run(SET_EXPIRY, [self.layout.lock(name), self.layout.index], [token, ttl])[0])

    def prune(self, limit: int) -> int:
        return int(self.client.run(PRUNE, [self.layout.index], [limit])[0])

    def scan(self) -> int:
        cursor, added = b"0", 0
        while True:
            cursor, more = self.client.run(SCAN, [self.layout.index], [cursor, self.layout.locks, self.layout.root])[0]
            added += int(more)
            if cursor == b"0":
                return added

    def remove(self, name: str, token: str | None = None) -> Record | None:
        # Never sent again: the second sending could take the lock from the next holder.
        arguments = [token or "", "any" if token is None else ""]
        return self._found(name, self.client.run(REMOVE, self.layout.keys(name), arguments, again=False)[0])

    def next_number(self, name: str = "", member: str = "") -> int:
        keys = [self.layout.number, self.layout.order(name)]
        return int(self.client.run(NEXT_NUMBER, keys, [member, KEPT])[0])

    def count_before(self, name: str, number: int, *, forget: bool = False) -> int:
        return int(self.client.run(ORDER, [self.layout.order(name)], ["", number, "forget" if forget else ""])[0])

    def leave_order(self, name: str, member: str) -> bool:
        return bool(self.client.run(ORDER, [self.layout.order(name)], [member, "+inf", ""])[0])

    def record_newest(self, name: str, number: int) -> bool:
        return bool(self.client.run(NEWEST, [self.layout.newest(name)], [number, SHOWN])[0])

    def set_flag(self, name: str) -> bool:
        return bool(self.client.run(FLAG, [self.layout.flag(name), self.layout.lock(name)], [KEPT])[0])

    def clear_flag(self, name: str) -> bool:
        was_set, doubt = self.client.run(FLAG, [self.layout.flag(name), self.layout.lock(name)], [0])
        return bool(was_set) or doubt  # the lost reply may have had it

    def tally(self, name: str, number: int = 1, *, ttl: int = DAY) -> int:
        return int(self.client.run(TALLY, [self.layout.flag(name)], [number, ttl])[0])

    def close(self) -> None:
        self.listener.close()
        self.client.close()


def listing(layout: Layout, which: Which, offset: int, limit: int) -> Sequence[str | int]:
    """Return the arguments of ``list.lua``."""
    return which, offset, limit, expiring(), layout.prefix, layout.queue


def listed(layout: Layout, reply: Sequence[Any]) -> list[Record]:
    """Return the records in a reply of ``list.lua``."""
    _, now, *rows = reply
    found = []
    for row in rows:
        ends, waiting, size, text = row.split(b" ", 3)
        name = text[: int(size)].decode(errors="backslashreplace").removeprefix(layout.prefix)
        left = None if ends == b"inf" else int(ends) - now
        found.append(record(name, text[int(size) :], now, left, int(waiting)))
    return found


def orphan(name: str, reply: Sequence[int] | None) -> Record | None:
    """Return the record in a reply of ``orphaned.lua``; its value is gone."""
    return None if reply is None else record(name, b"", reply[1], reply[0], 0)


def verdict(code: int, doubt: bool) -> Released:
    """Return the outcome of a release. ``doubt``: the reply to an earlier attempt was lost.

    Then that attempt released the lock, if it is free or another holder's now; a caller
    whose lease had run out before knows that it did not.
    """
    if code >= 1 or doubt:
        return Released.RELEASED
    return Released.GONE if code == 0 else Released.NOT_YOURS
