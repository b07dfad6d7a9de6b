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
from typing import TYPE_CHECKING, Any

from django_tasklock.backends.contract.stores import Permits
from django_tasklock.backends.redis.keys import grant_in, is_granted, record
from django_tasklock.backends.redis.script import load
from django_tasklock.backends.redis.wake import QueueStore
from django_tasklock.types import AcquireRequest, Busy, Grant, Record, Released, Renewal, RenewalResult

if TYPE_CHECKING:
    from django_tasklock.backends.redis import RedisBackend
    from django_tasklock.backends.redis.keys import Layout

ACQUIRE = load("permit_acquire")
RELEASE = load("permit_release")
EXTEND = load("permit_extend")
REMOVE = load("permit_remove")
RENEW = load("permit_renew")
MEMBERS = load("permit_members")
NAMES = load("permit_names")


class PermitLayout:
    """Keys and arguments for one prefix."""

    def __init__(self, layout: Layout) -> None:
        root = layout.prefix.removesuffix(":") + "#permits"
        self.members, self.holders, self.queue = f"{root}:", f"{root}-by:", f"{root}-queue:"
        self.index = root
        self._waiters = f"{root}-waiters:"
        self._fence = layout.fence
        self.new_channel = layout.new_channel

    def keys(self, name: str) -> list[str]:
        """Return the keys of the scripts that can grant a permit."""
        members, holders = self.members + name, self.holders + name
        return [members, holders, self._fence, self.queue + name, self.index, self._waiters + name]

    def waiting(self, name: str) -> list[str]:
        """Return the keys of the waiters for a permit."""
        return [self.queue + name, self._waiters + name]

    def arguments(self, request: AcquireRequest) -> tuple[str | int, ...]:
        """Return the arguments of ``permit_acquire.lua``: token, TTL, hold, holder and limit."""
        return request.token, request.ttl_ms, request.hold_ms, request.holder, request.limit


class RedisPermits(QueueStore, Permits):
    """The permits of a ``RedisBackend``, on its connections."""

    layout: PermitLayout
    JOIN = ACQUIRE
    LEAVE = RELEASE

    def __init__(self, backend: RedisBackend) -> None:
        self.layout = PermitLayout(backend.layout)
        self.client, self.listener = backend.client, backend.listener

    def acquire(self, request: AcquireRequest) -> Grant | Busy:
        keys, arguments = self.layout.keys(request.name), self.layout.arguments(request)
        return self.answer(request, self.client.run(ACQUIRE, keys, arguments)[0])

    def answer(self, request: AcquireRequest, reply: Any) -> Grant | Busy:
        """Return the result in a reply of ``permit_acquire.lua``."""
        if is_granted(reply):
            return grant_in(reply, request.ttl_ms)
        left, value, now, expired, *_ = reply
        first = None if value is None else record(request.name, value, now, left, 0)
        return Busy(first, left, expired=expired)

    def release(self, name: str, token: str) -> Released:
        had, doubt = self.client.run(RELEASE, self.layout.keys(name), [token])
        return Released.RELEASED if had or doubt else Released.GONE  # doubt: an earlier attempt may have released it

    def extend(self, name: str, token: str, ttl: int, hold: int) -> bool:
        return bool(self.client.run(EXTEND, self.layout.keys(name), [token, ttl, hold])[0])

    def renew(self, batch: Sequence[Renewal]) -> list[RenewalResult]:
        keys = [self.layout.members + item.name for item in batch]
        arguments: list[str | int] = [argument for item in batch for argument in (item.token, item.ttl)]
        done = self.client.run(RENEW, keys, arguments)[0]
        return [RenewalResult.RENEWED if renewed else RenewalResult.LOST for renewed in done]

    def members(self, name: str) -> list[Record]:
        keys = [self.layout.members + name, self.layout.holders + name, self.layout.queue + name]
        now, waiting, *flat = self.client.run(MEMBERS, keys)[0]
        found = [record(name, value, now, left, waiting) for left, value in zip(flat[::2], flat[1::2], strict=True)]
        return sorted(found, key=lambda one: one.fence)

    def remove(self, name: str, token: str) -> Record | None:
        # May be sent again: a token has only one permit, so another one cannot be removed.
        reply = self.client.run(REMOVE, self.layout.keys(name), [token])[0]
        return None if reply is None else record(name, reply[1], reply[2], reply[0], reply[3])

    def names(self, limit: int = 1000) -> list[str]:
        found = self.client.run(NAMES, [self.layout.index], [self.layout.members, limit])[0]
        return [name.decode() for name in found]
