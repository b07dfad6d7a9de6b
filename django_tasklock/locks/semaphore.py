"""``ConcurrencyLimiter``: at most N at once over all processes, each member with a lease of its own.

What it promises: of the callers with limit N never more than N have a permit *while their leases are
intact*. A member is a token in a set, renewed by the heartbeat, and not one in a counter, which cannot
tell who left without a word. The caveat of a lock holds here too: a process that was paused past its
lease is no member any more and notices it at its next step, so for a moment one more may run.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable

from django_tasklock.backends import get_backend
from django_tasklock.backends.contract.metrics import clean_kind
from django_tasklock.backends.contract.permits import Permits
from django_tasklock.conf import DEFAULT, Duration, LeaseTime, OnUnavailable, Timeout, get_settings
from django_tasklock.context import Block, limiter_block, skip_struck
from django_tasklock.exceptions import BackendUnavailable, TaskLockAcquireError, TaskLockError
from django_tasklock.locks import events
from django_tasklock.locks.heartbeat import heartbeat
from django_tasklock.locks.info import all_taken, lock_info
from django_tasklock.locks.lease import Lease
from django_tasklock.locks.lock import Acquirable
from django_tasklock.locks.parameters import LockParameters
from django_tasklock.locks.takes import Leases, Takes
from django_tasklock.names import clean
from django_tasklock.types import AcquireRequest, Busy, Grant, LimiterInfo, LockInfo, Record, fingerprint

MOST = 10_000
"""The greatest limit: every member is looked after one by one."""


def current_limiter() -> ConcurrencyLimiter | None:
    """Return the innermost limiter whose ``with`` block or decorated function runs here."""
    block = limiter_block.get()
    return None if block is None else block.lock()


def check_limit(limit: object, name: str | None = None) -> int:
    """Return ``limit`` if it can be one; ``TaskLockError`` otherwise."""
    if type(limit) is not int or not 1 <= limit <= MOST:
        raise TaskLockError(f"a limit must be a whole number from 1 to {MOST}, not {limit!r}", name=name)
    return limit


class ConcurrencyLimiter(Acquirable):
    """At most ``limit`` permits of a name at once, over all threads, processes and machines.

    One object may be shared by all threads and asyncio tasks of a process. A permit belongs to the thread
    or asyncio task that took it, and only that one releases it: a release too many is refused and never
    gives back another's. Whoever has one and asks again goes on with that one, so that a nested call never
    waits for itself; the last of as many releases gives it back.

    ``acquire()`` and ``with`` wait, for ``blocking_timeout`` seconds (``None``: without limit), woken in
    order of arrival where the store can wake; ``blocking=False``: not at all. ``timeout``, ``lease``,
    ``on_unavailable`` and ``on_lost`` are those of a ``TaskLock``.

    ``limit`` is the caller's own and not stored: it is granted a permit if fewer than its limit are taken. So
    a change needs no migration; while old and new code run side by side each keeps to its own.

    Raises ``TaskLockError`` for what cannot work, before anything is stored.
    """

    noun = "limiter"
    innermost = limiter_block

    def __init__(
        self,
        name: str,
        limit: int,
        *,
        timeout: Timeout = DEFAULT,
        lease: LeaseTime = DEFAULT,
        blocking: bool | None = None,
        blocking_timeout: Duration | None = None,
        on_unavailable: OnUnavailable | None = None,
        on_lost: Callable[[str], object] | None = None,
    ) -> None:
        if blocking is None and blocking_timeout is None:
            blocking = True
        name = clean(name, get_settings().KEY_PREFIX)
        parameters = LockParameters.checked(name, timeout, lease, blocking, blocking_timeout, True, on_unavailable)
        super().__init__(name, parameters, Takes(permits=True), on_lost)
        self.limit = check_limit(limit, self.name)
        self.kind = clean_kind(self.name)

    def _store(self) -> Permits:
        return get_backend().permits

    def _busy(self, answer: Busy) -> TaskLockAcquireError:
        return all_taken(self.name, self.limit, answer)

    def _settle(self, lease: Lease, home: Leases, sent: float, answer: Grant | Busy) -> bool:
        before, times = home.get(self.name), self._takes.times()
        return super()._settle(lease, home, sent, answer) and self._follow(before, lease, times)

    def _unavailable(self, lease: Lease, request: AcquireRequest, error: BackendUnavailable) -> bool:
        before, times = self._takes.here().get(self.name), self._takes.times()
        return super()._unavailable(lease, request, error) and self._follow(before, self.lease, times)

    def _follow(self, before: Lease | None, lease: Lease | None, times: int) -> bool:
        """Take over from a lost permit what a nested call has taken in its place: it is released as often as both were
        taken.
        """
        if before is not None and lease is not None and not (before.released or before.foreign):
            lease.count += before.count
            before.successor = lease
            self._takes.inherit(times)
            heartbeat.release_later(before, before.span or self.parameters.hold_ms)
        return True

    def enter(self) -> Lease:
        """Become ``current_limiter()``; for code that acquires and releases around a body by itself."""
        try:
            lease = self._block = self.mine()
            self._blocks += 1
            limiter_block.set(Block(weakref.ref(self), lease, skip_struck(limiter_block.get())))
        except BaseException:  # a time limit may strike anywhere; the caller does not know of the permit yet
            self.struck()
            raise
        return lease

    def leave(self, lease: Lease | None = None) -> None:
        """Undo ``enter``."""
        block = limiter_block.get()
        if block is not None and block.lock() is self:
            self._blocks -= 1
            limiter_block.set(block.around)

    def _inherited(self) -> bool:
        entered = self._entered()
        return entered is not None and entered.foreign

    def info(self) -> LimiterInfo:
        """Return who has its permits. Raises ``BackendUnavailable``."""
        return self._info(self._store().members(self.name))

    async def ainfo(self) -> LimiterInfo:
        """Do what ``info`` does, for coroutines."""
        return self._info(await self._store().amembers(self.name))

    def members(self) -> list[LockInfo]:
        """Return who has a permit, the one that has it longest first. Raises ``BackendUnavailable``."""
        return list(self.info().members)

    def remove(self, member: str) -> LockInfo | None:
        """Take a permit away from the member with this fingerprint; who that was, ``None`` if there is none.

        It goes on running, without a permit, and is told at its next heartbeat that it is lost. Raises
        ``BackendUnavailable``.
        """
        store = self._store()
        for record in store.members(self.name):
            if fingerprint(record.token) == member:
                removed = store.remove(self.name, record.token)
                if removed is None:
                    return None
                info = lock_info(removed)
                events.forced(self.name, info, self.noun)
                return info
        return None

    def _info(self, records: list[Record]) -> LimiterInfo:
        waiting = records[0].waiting if records else 0
        return LimiterInfo(self.name, self.limit, waiting, tuple(map(lock_info, records)))
