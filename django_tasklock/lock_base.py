"""What a ``TaskLock`` knows and decides, without its verbs: both halves, sync and async, share it."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from functools import partial

from django_tasklock.backends import get_backend
from django_tasklock.backends.leases import Leases
from django_tasklock.conf import DEFAULT, Duration, Lease, OnUnavailable, get_settings, milliseconds, spans
from django_tasklock.exceptions import BackendUnavailable, TaskLockAcquireError, TaskLockError
from django_tasklock.heartbeat import heartbeat
from django_tasklock.holders import me
from django_tasklock.holds import Hold, Holds, holds_here
from django_tasklock.info import busy_error
from django_tasklock.names import clean
from django_tasklock.reports import told_acquired, told_asked, told_lost, told_unavailable
from django_tasklock.types import Ask, Busy, Grant, Record, Released, monotonic
from django_tasklock.waiting import Taken, patience

__all__ = ["LockBase"]

PRUNE = 50  # threads and asyncio tasks that have shared one object, before those that ended are forgotten


class LockBase:
    """The terms of a lock, who holds it here, and the policies. Use ``TaskLock``."""

    noun = "lock"
    """What this is, for people."""
    limit = 1
    """How many may hold it at once."""
    _prune_at = PRUNE

    def __init__(
        self,
        name: str,
        *,
        timeout: Duration | None = None,
        lease: Lease = DEFAULT,
        blocking: bool | None = None,
        blocking_timeout: Duration | None = None,
        reentrant: bool = False,
        on_unavailable: OnUnavailable | None = None,
        on_lost: Callable[[str], object] | None = None,
    ) -> None:
        settings = get_settings()
        self.name = clean(name, settings.KEY_PREFIX)
        self._hold_ms, self._lease_ms = spans(timeout, lease, self.name)
        self._patience = patience(blocking, blocking_timeout, self.name)
        self._reentrant = reentrant
        self._on_unavailable = settings.ON_UNAVAILABLE if on_unavailable is None else on_unavailable
        if self._on_unavailable not in ("run", "raise", "skip"):
            raise TaskLockError(
                f"on_unavailable must be 'run', 'raise' or 'skip', not {on_unavailable!r}", name=self.name
            )
        self._on_lost = partial(_lost, weakref.ref(self), self.noun, self.name, on_lost)
        self._on_asked = partial(_asked, weakref.ref(self), self.name)
        self._last: Hold | None = None
        self._takers: dict[int, weakref.ref[Holds]] = {}
        self._carried: str | None = None
        self._follows = ""
        self.row = ""
        """The guarded row that is worked on, ``videos.video:42``: for people, beside the lock."""
        self.met: Record | None = None
        """Who had the lock when the last ``acquire()`` found it busy, where that could be read."""
        self.conflict: TaskLockAcquireError | None = None
        """Why the last ``acquire()`` through this object returned False."""

    def _store(self) -> Leases:
        return get_backend()

    def _busy(self, answer: Busy) -> TaskLockAcquireError:
        return busy_error(self.name, answer)

    def _wait(self, blocking: bool | None, blocking_timeout: Duration | None) -> float:
        if blocking is None and blocking_timeout is None:
            return self._patience
        return patience(blocking, blocking_timeout, self.name)

    def _begin(self) -> tuple[Hold, Ask]:
        self.conflict = self.met = None
        hold = Hold(self._store(), self.name, self._lease_ms, self._on_lost)
        hold.on_asked = self._on_asked
        if self._carried is not None:
            hold.token, self._carried = self._carried, None
        ttl = self._lease_ms or self._hold_ms
        holder = me(row=self.row, limit=self.limit if self.noun == "limiter" else 0)
        return hold, Ask(self.name, hold.token, ttl, self._hold_ms, holder, self._follows, self.limit)

    def _settle(self, hold: Hold, taken: Taken) -> bool:
        asked, answer = taken
        if isinstance(answer, Busy):
            self.met = answer.record
            self.conflict = self._busy(answer)
            return False
        hold.granted(answer, asked, self._hold_ms)
        if hold.lost:
            raise BackendUnavailable("the store's answer came after the lease was over", name=self.name)
        self._keep(hold)
        if hold.lease is not None:
            heartbeat.follow(hold)
        told_acquired(self, hold)
        return True

    def _keep(self, hold: Hold) -> None:
        home = self._here()
        self._last = hold
        hold.settle(home)
        if hold.home is not None:
            self._takers[id(home)] = hold.home
        if len(self._takers) >= self._prune_at:
            self._takers = {key: ref for key, ref in list(self._takers.items()) if ref() is not None}
            self._prune_at = 2 * max(len(self._takers), PRUNE)

    def _reenter(self) -> bool:
        hold = self._here().get(self.name)
        if hold is None or hold.released or hold.lost:
            return False
        if not self._reentrant:
            raise TaskLockError(
                f"{self.noun} {self.name!r} is already held by this thread or asyncio task; release it first, "
                "or pass reentrant=True if taking it twice is meant",
                name=self.name,
            )
        hold.count += 1
        self._last = hold
        return True

    def _unavailable(self, hold: Hold, ask: Ask, error: BackendUnavailable) -> bool:
        self._drop(hold)
        if error.doubt:  # otherwise there is nothing to undo, however long the outage
            heartbeat.abandon(hold, ask.ttl)
        action = self._on_unavailable
        told_unavailable(self.name, error, action, self.noun)
        if action == "raise":
            error.name = error.name or self.name
            raise error
        if action == "skip":
            self.conflict = TaskLockAcquireError(f"{self.noun} {self.name!r} was not taken: {error}", name=self.name)
            self.conflict.__cause__ = error
            return False
        without = Hold(hold.backend, self.name, self._lease_ms, self._on_lost)
        without.on_asked = self._on_asked
        without.unlocked = True
        without.until = monotonic() + self._hold_ms / 1000
        self._keep(without)
        heartbeat.catch_up(without, ask._replace(token=without.token, instead=""))
        return True

    def _drop(self, hold: Hold) -> None:
        heartbeat.forget(hold)
        hold.leave()
        if self._last is hold:
            self._last = None

    def _struck(self) -> None:
        """Give up what an exception out of a signal handler, a time limit say, has kept from being released."""
        hold = self._here().get(self.name)
        if hold is None or hold.released or hold.foreign:
            return
        hold.count -= 1
        if not hold.count:
            self._drop(hold)
            heartbeat.abandon(hold, hold.lease or self._hold_ms)

    def _later(self, hold: Hold, error: BackendUnavailable) -> Released:
        heartbeat.abandon(hold, hold.lease or self._hold_ms)
        told_unavailable(self.name, error, "release later", self.noun)
        return Released.UNKNOWN

    def _extending(self, timeout: Duration | None) -> tuple[Hold, int, int]:
        hold = self._mine()
        hold_ms = self._hold_ms if timeout is None else milliseconds(timeout, "timeout", name=self.name)
        return hold, hold_ms if hold.lease is None else min(hold.lease, hold_ms), hold_ms

    def _extended(self, hold: Hold, asked: float, ttl: int, hold_ms: int, done: bool) -> bool:
        if not done:
            if hold.lose("the store no longer knows it"):
                self._on_lost(hold.lost)
            return False
        if hold.lost:
            return False
        hold.granted(Grant(hold.fence, ttl), asked, hold_ms)
        if hold.lease is not None:
            heartbeat.follow(hold)
        return True

    def _here(self) -> Holds:
        return holds_here()

    def _find(self) -> Hold | None:
        here = self._here()
        hold = here.get(self.name) or self._last
        return None if hold is None or hold.released or hold.foreign or self._anothers(hold, here) else hold

    def _anothers(self, hold: Hold, here: Holds) -> bool:
        """Who never had the lock may be handed it. Who had it and released it means its own, not its successor's."""
        home = None if hold.home is None else hold.home()
        if home is None or home is here:
            return False
        taker = self._takers.get(id(here))
        return taker is not None and taker() is here

    def _mine(self) -> Hold:
        hold = self._find()
        if hold is None:
            raise TaskLockError(
                f"{self.noun} {self.name!r} is not held through this object: acquire() it first", name=self.name
            )
        return hold


def _asked(lock: weakref.ref[LockBase], name: str) -> None:
    told_asked(name, lock())


def _lost(
    lock: weakref.ref[LockBase], noun: str, name: str, listener: Callable[[str], object] | None, reason: str
) -> None:
    # Weak: who drops a lock object must not be kept waiting for the garbage collector.
    told_lost(name, lock(), reason, noun)
    if listener is not None:
        listener(reason)
