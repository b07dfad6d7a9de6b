"""Locks in Redis or Valkey: one script per operation, one round trip."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from itertools import chain
from typing import Any

from django_tasklock.backends.contract.leases import Queued
from django_tasklock.backends.contract.lists import Counts, Which
from django_tasklock.backends.contract.locks import LockStore
from django_tasklock.backends.redis.cluster import is_cluster
from django_tasklock.backends.redis.cluster_async import ClusterConnections
from django_tasklock.backends.redis.connections import Asking, AsyncAsking, Connections, Listening, OneServer
from django_tasklock.backends.redis.keys import KEPT, SHOWN, Layout, grant_in, is_granted, record
from django_tasklock.backends.redis.permits import RedisPermits
from django_tasklock.backends.redis.queued import WAITERS, waiters_in
from django_tasklock.backends.redis.rates import RedisRates
from django_tasklock.backends.redis.script import Script, bulk, load
from django_tasklock.backends.redis.waiter import QueueStore
from django_tasklock.conf import Settings, expiring
from django_tasklock.names import tagged
from django_tasklock.types import AcquireRequest, Busy, Grant, Record, Released, Renewal, RenewalResult

__all__ = ["RedisBackend"]

ACQUIRE = load("acquire", 5, 5)
RELEASE = load("release", 5, 1)
EXTEND = load("extend", 2, 3)
RENEW = load("renew", 1, 0)
GET = load("get", 2, 0)
REMOVE = load("remove", 5, 2)
LIST = load("list", 1, 6)
COUNTS = load("counts", 1, 1)
CONDITION = load("condition", 0, 0)
ASK_RELEASE = load("ask_release", 1, 1)
SET_EXPIRY = load("set_expiry", 2, 2)
PRUNE = load("prune", 1, 1)
NEXT_NUMBER = load("next_number", 2, 2)
ORDER = load("order", 1, 3)
FLAG = load("flag", 2, 1)
NEWEST = load("newest", 1, 2)
_RELEASE_AND_CLEAR_FLAGS = f"""
local function release()
{RELEASE.body}
end
local flags = {{}}
while #KEYS > 5 do table.insert(flags, 1, table.remove(KEYS)) end
local reply = release()
if reply == 1 then
  for n, flag in ipairs(flags) do reply = reply + redis.call('DEL', flag) * 2 ^ n end
end
return reply
"""
RELEASE_AND_CLEAR = {
    flags: Script(_RELEASE_AND_CLEAR_FLAGS, RELEASE.count + flags, RELEASE.keys + flags) for flags in (1, 2)
}
"""``release.lua``; then, if the lock was held, flags are cleared, whose keys follow the others.
The reply then has a bit for each flag that was set, see ``flags_in``."""

RENEWAL_RESULTS = (RenewalResult.LOST, RenewalResult.RENEWED, RenewalResult.ASKED)  # by the code in the script's reply

CACHED_NAMES = 512  # names whose encoded keys are cached: each is used at least twice, to acquire and to release


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
    JOIN = load("acquire", 5, 8)
    LEAVE = load("release", 5, 2)

    def __init__(self, settings: Settings, connections: Connections | None = None) -> None:
        self.location = settings.location
        clustered = is_cluster(settings.location)
        self.layout = Layout(tagged(settings.prefix) if clustered else settings.prefix)
        self._keys = lru_cache(CACHED_NAMES)(self.layout.keys)
        kind = ClusterConnections if clustered else OneServer
        self._connections = connections or kind(settings.location, self.layout)
        self._wire: Asking | None = None
        self._aio = self._connections.aio
        self.permits = RedisPermits(self)
        self.rates = RedisRates(self)

    @property
    def wire(self) -> Asking:
        """The connections of this process's threads, made on first use."""
        wire = self._wire
        if wire is None:
            wire = self._wire = self._connections.wire
        return wire

    @property
    def aio(self) -> AsyncAsking:
        """The connections of this process's event loops."""
        return self._aio

    @property
    def subscribers(self) -> Listening:
        """The connections on which this process's threads wait."""
        return self._connections.subscribers

    def acquire(self, request: AcquireRequest) -> Grant | Busy:
        return self.answer(request, (self._wire or self.wire).call(*self._acquire_command(request))[0])

    def _acquire_command(self, request: AcquireRequest) -> tuple[Script, bytes]:
        """Return ``acquire.lua`` with its keys and arguments."""
        return ACQUIRE, self._keys(request.name) + self.layout.arguments(request)

    def answer(self, request: AcquireRequest, reply: Any) -> Grant | Busy:
        """Return the result in a reply of ``acquire.lua``."""
        if is_granted(reply):
            return grant_in(reply, request.ttl_ms)
        return self.layout.busy(request.name, reply)

    def release(self, name: str, token: str) -> Released:
        code, doubt = (self._wire or self.wire).call(RELEASE, self._release_arguments(name, token))
        return Released.RELEASED if code == 1 else verdict(code, doubt)

    def _release_arguments(self, name: str, token: str) -> bytes:
        packed = token.encode()
        return b"%b$%d\r\n%b\r\n" % (self._keys(name), len(packed), packed)

    def release_and_clear(
        self, name: str, token: str, names: tuple[str, ...]
    ) -> tuple[Released, frozenset[str] | None]:
        flags = b"".join(map(self.layout.flag, names))
        command = RELEASE_AND_CLEAR[len(names)], self._keys(name) + flags + bulk(token)
        reply, doubt = (self._wire or self.wire).call(*command)
        if doubt:  # the lost reply had the flags: assume that all were set
            return Released.RELEASED, frozenset(names)
        return verdict(reply, doubt), flags_in(reply, names)

    def extend(self, name: str, token: str, ttl: int, hold: int) -> bool:
        return bool(self.wire.call(EXTEND, self._extend_arguments(name, token, ttl, hold))[0])

    def _extend_arguments(self, name: str, token: str, ttl: int, hold: int) -> bytes:
        return self.layout.lock(name) + self.layout.index + bulk(token) + bulk(ttl) + bulk(hold)

    def renew(self, batch: Sequence[Renewal]) -> list[RenewalResult]:
        return results(self.wire.call(*self.renewing(batch))[0])

    def renewing(self, batch: Sequence[Renewal]) -> tuple[Script, bytes]:
        """Return the script that renews a batch, with its keys and arguments."""
        keys = (self.layout.lock(item.name) for item in batch)
        arguments = chain.from_iterable((bulk(item.token), bulk(item.ttl)) for item in batch)
        tail = self.layout.index + b"".join(keys) + b"".join(arguments)
        return RENEW.sized(1 + 3 * len(batch), 1 + len(batch)), tail

    def get(self, name: str) -> Record | None:
        return self.found(name, self.wire.call(GET, self._get_arguments(name))[0])

    def _get_arguments(self, name: str) -> bytes:
        return self.layout.lock(name) + bulk(self.layout.queue + name)

    def found(self, name: str, reply: Any) -> Record | None:
        """Return the record in a reply of ``get.lua`` or ``remove.lua``."""
        return None if reply is None else self.layout.record(name.encode(), reply)

    def waiters(self, name: str, limit: int = 100) -> Queued:
        return waiters_in(self.wire.call(WAITERS, self.layout.waiting(name) + bulk(limit))[0])

    def records(self, which: Which = "live", *, offset: int = 0, limit: int = 1000) -> list[Record]:
        asked = b"".join(map(bulk, listing(self.layout, which, offset, limit)))
        while not (reply := self.wire.call(LIST, self.layout.index + asked)[0])[0]:
            pass  # many wrong entries of the index were corrected, and there may be more
        return listed(self.layout, reply)

    def counts(self) -> Counts:
        return Counts(*self.wire.call(COUNTS, self.layout.index + bulk(expiring()))[0])

    def _condition(self) -> tuple[int | None, str | None]:
        clock, policy = self.wire.call(CONDITION, b"")[0]
        return int(clock), policy.decode()

    def ask_release(self, name: str, token: str) -> bool:
        return bool(token) and bool(self.wire.call(ASK_RELEASE, self.layout.lock(name) + bulk(token))[0])

    def set_expiry(self, name: str, token: str, ttl: int) -> bool:
        return bool(self.wire.call(SET_EXPIRY, self.layout.lock(name) + self.layout.index + bulk(token) + bulk(ttl))[0])

    def prune(self, limit: int) -> int:
        return int(self.wire.call(PRUNE, self.layout.index + bulk(limit))[0])

    def remove(self, name: str, token: str | None = None) -> Record | None:
        # Never sent again: the second sending could take the lock from the next holder.
        tail = self.layout.keys(name) + bulk(token or "") + bulk("any" if token is None else "")
        return self.found(name, self.wire.call(REMOVE, tail, again=False)[0])

    def next_number(self, name: str = "", member: str = "") -> int:
        tail = self.layout.ticket + self.layout.order(name) + bulk(member) + bulk(KEPT)
        return int(self.wire.call(NEXT_NUMBER, tail)[0])

    def count_before(self, name: str, number: int, *, forget: bool = False) -> int:
        tail = self.layout.order(name) + bulk("") + bulk(number) + bulk("forget" if forget else "")
        return int(self.wire.call(ORDER, tail)[0])

    def leave_order(self, name: str, member: str) -> bool:
        return bool(self.wire.call(ORDER, self.layout.order(name) + bulk(member) + bulk("+inf") + bulk(""))[0])

    def record_newest(self, name: str, number: int) -> bool:
        return bool(self.wire.call(NEWEST, self.layout.newest(name) + bulk(number) + bulk(SHOWN))[0])

    def set_flag(self, name: str) -> bool:
        return bool(self.wire.call(FLAG, self.layout.flag(name) + self.layout.lock(name) + bulk(KEPT))[0])

    def clear_flag(self, name: str) -> bool:
        return bool(self.wire.call(FLAG, self.layout.flag(name) + self.layout.lock(name) + bulk(0))[0])

    def close(self) -> None:
        self._connections.close()


def listing(layout: Layout, which: Which, offset: int, limit: int) -> Sequence[str | int]:
    """Return the arguments of ``list.lua``."""
    return which, offset, limit, expiring(), layout.prefix, layout.queue


def listed(layout: Layout, reply: Sequence[Any]) -> list[Record]:
    """Return the records in a reply of ``list.lua``."""
    _, now, *flat = reply
    return [
        record(
            key.decode(errors="backslashreplace").removeprefix(layout.prefix),
            value,
            now,
            None if ends == b"inf" else int(ends) - now,
            waiting,
        )
        for key, value, ends, waiting in zip(flat[::4], flat[1::4], flat[2::4], flat[3::4], strict=True)
    ]


def results(codes: Sequence[int]) -> list[RenewalResult]:
    """Return the results in a reply of ``renew.lua``."""
    return [RENEWAL_RESULTS[code] for code in codes]


def verdict(code: int, doubt: bool) -> Released:
    """Return the outcome of a release. ``doubt``: the reply to an earlier attempt was lost.

    Then that attempt released the lock, if it is free or another holder's now; a caller
    whose lease had run out before knows that it did not.
    """
    if code >= 1 or doubt:
        return Released.RELEASED
    return Released.GONE if code == 0 else Released.NOT_YOURS


def flags_in(reply: int, names: tuple[str, ...]) -> frozenset[str] | None:
    """Return the names whose flag a release has cleared. ``None``: the lock was not held, and no flag was read."""
    if reply < 1:
        return None
    return frozenset(name for bit, name in enumerate(names, 1) if reply >> bit & 1)
