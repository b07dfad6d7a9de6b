"""Permits in Redis: one script per operation, one round trip; waiters sleep until a permit is handed to them.

With the prefix ``task_lock:`` the members of ``transcode`` are the sorted set ``task_lock#permits:transcode``,
tokens scored by the expiry of their leases; ``task_lock#permits-by:transcode`` is a hash of their holders,
``task_lock#permits-queue:transcode`` the queue of waiters, ``task_lock#permits-waiters:transcode`` who they are, and
``task_lock#permits`` the names of the limiters.

Permits are not N numbered locks: a caller would have to try up to N of them, could not wait for *any* of them in
order, and after N was lowered the upper ones would not be counted.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any

from django_tasklock.backends.contract.leases import Queued
from django_tasklock.backends.contract.permits import Permits
from django_tasklock.backends.redis.keys import grant_in, is_granted, record
from django_tasklock.backends.redis.queued import WAITERS, waiters_in
from django_tasklock.backends.redis.script import Script, bulk, load
from django_tasklock.backends.redis.waiter import QueueStore
from django_tasklock.types import AcquireRequest, Busy, Grant, Record, Released, Renewal, RenewalResult

if TYPE_CHECKING:
    from django_tasklock.backends.redis import RedisBackend
    from django_tasklock.backends.redis.connections import Asking, AsyncAsking, Listening
    from django_tasklock.backends.redis.keys import Layout

ACQUIRE = load("permit_acquire", 6, 5)
RELEASE = load("permit_release", 6, 1)
EXTEND = load("permit_extend", 6, 3)
REMOVE = load("permit_remove", 6, 1)
RENEW = load("permit_renew", 0, 0)
MEMBERS = load("permit_members", 3, 0)
NAMES = load("permit_names", 1, 2)


class PermitLayout:
    """Encoded keys and arguments for one prefix."""

    def __init__(self, layout: Layout) -> None:
        root = layout.prefix.removesuffix(":") + "#permits"
        self.members, self.holders, self.queue = f"{root}:", f"{root}-by:", f"{root}-queue:"
        self.waiters = f"{root}-waiters:"
        self.index = bulk(root)
        self._fence = layout.fence
        self.new_channel = layout.new_channel

    def set(self, name: str) -> bytes:
        """Return the key of a limiter's members."""
        return bulk(self.members + name)

    def keys(self, name: str) -> bytes:
        """Return the keys of the scripts that can grant a permit."""
        keys = self.set(name) + bulk(self.holders + name) + self._fence + bulk(self.queue + name)
        return keys + self.index + bulk(self.waiters + name)

    def waiting(self, name: str) -> bytes:
        """Return the keys of the waiters for a permit."""
        return bulk(self.queue + name) + bulk(self.waiters + name)

    def acquiring(self, request: AcquireRequest) -> bytes:
        """Return the keys and arguments of ``permit_acquire.lua`` for a caller that does not wait."""
        arguments = (
            bulk(request.token)
            + bulk(request.ttl_ms)
            + bulk(request.hold_ms)
            + bulk(request.holder)
            + bulk(request.limit)
        )
        return self.keys(request.name) + arguments


class RedisPermits(QueueStore, Permits):
    """The permits of a ``RedisBackend``, on its connections."""

    layout: PermitLayout
    JOIN = load("permit_acquire", 6, 8)
    LEAVE = load("permit_release", 6, 2)

    def __init__(self, backend: RedisBackend) -> None:
        self._backend = backend
        self.layout = PermitLayout(backend.layout)

    @property
    def wire(self) -> Asking:
        """The connections of this process's threads."""
        return self._backend.wire

    @property
    def subscribers(self) -> Listening:
        """The connections on which this process's threads wait."""
        return self._backend.subscribers

    @property
    def aio(self) -> AsyncAsking:
        """The connections of this process's event loops."""
        return self._backend.aio

    def acquire(self, request: AcquireRequest) -> Grant | Busy:
        return self.answer(request, self.wire.call(ACQUIRE, self.layout.acquiring(request))[0])

    def answer(self, request: AcquireRequest, reply: Any) -> Grant | Busy:
        """Return the result in a reply of ``permit_acquire.lua``."""
        if is_granted(reply):
            return grant_in(reply, request.ttl_ms)
        left, value, now, expired, *_ = reply
        first = None if value is None else record(request.name, value, now, left, 0)
        return Busy(first, left, expired=expired)

    def release(self, name: str, token: str) -> Released:
        return verdict(*self.wire.call(RELEASE, self.layout.keys(name) + bulk(token)))

    def extend(self, name: str, token: str, ttl: int, hold: int) -> bool:
        return bool(self.wire.call(EXTEND, self._extend(name, token, ttl, hold))[0])

    def _extend(self, name: str, token: str, ttl: int, hold: int) -> bytes:
        return self.layout.keys(name) + bulk(token) + bulk(ttl) + bulk(hold)

    def renew(self, batch: Sequence[Renewal]) -> list[RenewalResult]:
        return results(self.wire.call(*self.renewing(batch))[0])

    def renewing(self, batch: Sequence[Renewal]) -> tuple[Script, bytes]:
        """Return the script that renews a batch, with its keys and arguments."""
        keys = b"".join(self.layout.set(item.name) for item in batch)
        arguments = b"".join(chain.from_iterable((bulk(item.token), bulk(item.ttl)) for item in batch))
        return RENEW.sized(3 * len(batch), len(batch)), keys + arguments

    def members(self, name: str) -> list[Record]:
        return self._found(name, self.wire.call(MEMBERS, self._members(name))[0])

    def _members(self, name: str) -> bytes:
        return self.layout.set(name) + bulk(self.layout.holders + name) + bulk(self.layout.queue + name)

    def _found(self, name: str, reply: list[Any]) -> list[Record]:
        now, waiting, *flat = reply
        found = [record(name, value, now, left, waiting) for left, value in zip(flat[::2], flat[1::2], strict=True)]
        return sorted(found, key=lambda one: one.fence)

    def waiters(self, name: str, limit: int = 100) -> Queued:
        return waiters_in(self.wire.call(WAITERS, self.layout.waiting(name) + bulk(limit))[0])

    def remove(self, name: str, token: str) -> Record | None:
        # May be sent again: a token has only one permit, so another one cannot be removed.
        reply = self.wire.call(REMOVE, self.layout.keys(name) + bulk(token))[0]
        return None if reply is None else record(name, reply[1], reply[2], reply[0], reply[3])

    def names(self, limit: int = 1000) -> list[str]:
        return [name.decode() for name in self.wire.call(NAMES, self.naming(limit))[0]]

    def naming(self, limit: int) -> bytes:
        """Return the key and arguments of ``permit_names.lua``."""
        return self.layout.index + bulk(self.layout.members) + bulk(limit)


def results(codes: Sequence[int]) -> list[RenewalResult]:
    """Return the results in a reply of ``permit_renew.lua``."""
    return [RenewalResult.RENEWED if done else RenewalResult.LOST for done in codes]


def verdict(had: int, doubt: bool) -> Released:
    """Return the outcome of a release. ``doubt``: an earlier attempt may have released the permit."""
    return Released.RELEASED if had or doubt else Released.GONE
