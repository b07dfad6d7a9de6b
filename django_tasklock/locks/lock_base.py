"""What a ``TaskLock`` knows and decides, without its verbs: both halves, sync and async, share it."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from functools import partial

from django_tasklock.backends import get_backend
from django_tasklock.backends.contract.leases import Leases
from django_tasklock.conf import DEFAULT, Duration, Lease, OnUnavailable, Timeout, get_settings, milliseconds, spans
from django_tasklock.exceptions import BackendUnavailable, TaskLockAcquireError, TaskLockError
from django_tasklock.locks.acquire import Taken, patience
from django_tasklock.locks.events import told_acquired, told_asked, told_lost, told_unavailable
from django_tasklock.locks.heartbeat import heartbeat
from django_tasklock.locks.holder import me
from django_tasklock.locks.info import busy_error
from django_tasklock.locks.lease import LINEAGE, Hold, Holds, holds_here
from django_tasklock.names import clean
from django_tasklock.types import Ask, Busy, Grant, Record, Released, monotonic

__all__ = ["LockBase"]


class _Take:
    """What one thread, asyncio task or call has from one object: taken so many times, or refused."""

    __slots__ = ("hold", "home", "times")

    def __init__(self, home: weakref.ref[Holds], hold: Hold | None, times: int) -> None:
        self.home = home
        self.hold = hold
        self.times = times

    @property
    def now(self) -> Hold | None:
        """What it has; what took the place of a lost one."""
        hold = self.hold
        while hold is not None and hold.successor is not None:
            hold = hold.successor
        return None if self.times <= 0 or hold is None or hold.released else hold


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
        timeout: Timeout = DEFAULT,
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
        self._takes: dict[int, _Take] = {}
        self._carried: str | None = None
        self._follows = ""
        self.row = ""
        """The guarded row that is worked on, ``videos.video:42``: for people, beside the lock."""
        self.met: Record | None = None
        """Who had the lock when the last ``acquire()`` found it busy, where that could be read."""
        self.conflict: TaskLockAcquireError | None = None
        """Why the last ``acquire()`` through this object returned False."""

    @property
    def timeout(self) -> float:
        """The most one holder may hold it, in seconds."""
        return self._hold_ms / 1000

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
            self._refused()
            return False
        hold.granted(answer, asked, self._hold_ms)
        if hold.lost:
            late = "the store's answer came after the lease was over"
            raise BackendUnavailable(late, name=self.name, down=False)
        self._keep(hold)
        if hold.lease is not None:
            heartbeat.follow(hold)
        told_acquired(self, hold)
        return True

    def _keep(self, hold: Hold) -> None:
        home = self._here()
        self._last = hold
        hold.settle(home)
        self._note(home, _Take(weakref.ref(home), hold, 1))

    def _note(self, home: Holds, take: _Take) -> None:
        self._takes[id(home)] = take
        if len(self._takes) >= self._prune_at:
            self._takes = {key: take for key, take in list(self._takes.items()) if take.home() is not None}
            self._prune_at = 2 * max(len(self._takes), PRUNE)

    def _refused(self) -> None:
        """Who was refused has nothing, whatever others have taken through this object."""
        home = self._here()
        if self._take_in(home) is None:
            self._note(home, _Take(weakref.ref(home), None, 0))

    def _reenter(self) -> bool:
        home = self._here()
        hold = home.get(self.name)
        if hold is None or hold.released or hold.lost:
            return False
        if not self._reentrant:
            raise TaskLockError(
                f"{self.noun} {self.name!r} is already held by this thread or asyncio task; release it first, "
                "or pass reentrant=True if taking it twice is meant",
                name=self.name,
            )
        take = self._take_in(home)
        if take is not None and take.hold is hold:
            take.times += 1
        else:
            self._note(home, _Take(weakref.ref(home), hold, 1))
        hold.count += 1
        self._last = hold
        return True

    def _unavailable(self, hold: Hold, ask: Ask, error: BackendUnavailable) -> bool:
        self._drop(hold)
        if error.doubt:  # otherwise there is nothing to undo, however long the outage
            heartbeat.abandon(hold, ask.ttl)
        if error.busy is not None:  # which no silence turns into anything else
            self.met = error.busy.record
            self.conflict = self._busy(error.busy)
            return False
        action = self._on_unavailable
        if action == "run" and not error.down:
            action = "raise"
        told_unavailable(self.name, error, action, self.noun)
        if action == "raise":
            error.name = error.name or self.name
            raise error
        if action == "skip":
            self._refused()
            self.conflict = TaskLockAcquireError(f"{self.noun} {self.name!r} was not taken: {error}", name=self.name)
            self.conflict.__cause__ = error
            return False
        without = Hold(hold.backend, self.name, self._lease_ms, self._on_lost)
        without.on_asked = self._on_asked
        without.unlocked = True
        without.until = monotonic() + self._hold_ms / 1000
        try:
            self._keep(without)
            heartbeat.catch_up(without, ask._replace(token=without.token, instead=""))
        except BaseException:  # a time limit; nobody would ever give back what is taken for it later
            self._drop(without)
            raise
        return True

    def _drop(self, hold: Hold) -> None:
        heartbeat.forget(hold)
        hold.leave()
        if self._last is hold:
            self._last = None

    def struck(self, *, later: bool = False) -> None:
        """Give up what an exception out of a signal handler, a time limit say, has kept from being released.

        ``later``: without waiting for the store.
        """
        hold = self._find()
        if hold is not None and self._returned(hold):
            self._give_up(hold, hold.lease or self._hold_ms, later)

    def _give_up(self, hold: Hold, longest: int, later: bool = False) -> None:
        """Release at once what nobody will release later."""
        try:
            self._drop(hold)
        finally:
            if later or hold.unlocked:
                heartbeat.abandon(hold, longest)  # in an outage it takes its time; its lock may be on its way
            else:
                heartbeat.give_back(hold, longest)

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
        """What was taken through this object by who asks, or, if that one never asked for it, by who did last."""
        take = self._asked_before()
        hold = self._handed() if take is None else take.now
        return None if hold is None or hold.released or hold.foreign else hold

    def _handed(self) -> Hold | None:
        return self._last

    def _take_in(self, home: Holds) -> _Take | None:
        """What ``home`` has taken through this object and not given back."""
        take = self._takes.get(id(home))
        return None if take is None or take.home() is not home or take.now is None else take

    def _asked_before(self) -> _Take | None:
        """What became of the last time that who asks now has asked for the lock through this object."""
        own = self._here()
        take = self._takes.get(id(own))
        if take is not None and take.home() is own:
            return take
        before = holds_here().before
        for _ in range(LINEAGE):
            if before is None:
                break
            own = self._part(before)
            take = self._takes.get(id(own))
            if take is not None and take.home() is own:
                return take
            before = before.before
        return None

    def _part(self, home: Holds) -> Holds:
        return home

    def _times(self) -> int:
        """How often who asks has taken it through this object, and not given it back."""
        take = self._take_in(self._here()) if self._takes else None
        return 0 if take is None else take.times

    def _returned(self, hold: Hold) -> bool:
        """Count one re-entry less; whether it was the last, so that the lock is to be released."""
        home = None if hold.home is None else hold.home()
        take = self._takes.get(id(home))  # of who took it, whoever returns it
        hold.count -= 1
        if take is not None and take.now is hold:
            take.times -= 1
        if self._last is hold and (take is None or take.times <= 0):
            self._last = None
        return hold.count <= 0

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
    try:
        told_lost(name, lock(), reason, noun)
    finally:
        if listener is not None:
            listener(reason)
