"""``TaskLock``: acquire, release, extend, with a heartbeat, a re-entry rule and policies.

What it promises: at most one holder per name *while the lease is intact*. What it cannot
promise, nor can any lease: that a process which was paused past its lease notices before
its next step. Guard the row that is worked on (``StateGuard``), and that does not matter.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable
from contextvars import ContextVar
from functools import partial
from types import TracebackType
from typing import Self

from django_tasklock.backends import get_backend
from django_tasklock.conf import DEFAULT, Duration, Lease, OnUnavailable, get_settings, milliseconds, spans
from django_tasklock.exceptions import BackendUnavailable, LockLost, TaskLockAcquireError, TaskLockError
from django_tasklock.heartbeat import heartbeat
from django_tasklock.holders import me
from django_tasklock.holds import Hold, Holds, holds_here
from django_tasklock.info import busy_error, lock_info
from django_tasklock.names import clean
from django_tasklock.reports import told_acquired, told_lost, told_released, told_unavailable
from django_tasklock.types import Ask, Busy, Grant, LockInfo, Released, monotonic
from django_tasklock.waiting import Taken, atake, patience, take

__all__ = ["TaskLock", "current_lock"]

_current: ContextVar[weakref.ref[TaskLock] | None] = ContextVar("tasklock_current", default=None)


def current_lock() -> TaskLock | None:
    """The innermost lock whose ``with`` block or decorated function runs here."""
    lock = _current.get()
    return None if lock is None else lock()


class TaskLock:
    """A lock by name, held by a thread or an asyncio task. Several may share one object.

    ``timeout``: the most one holder may have it, seconds. ``lease``: how long it outlives
    a holder that died; renewed until ``timeout``. ``lease=None``: no heartbeat, it lives
    for ``timeout``. ``blocking``, ``blocking_timeout``: what ``acquire()`` does by default
    (seconds; ``None``: no limit). ``reentrant``: whether its own holder may take it again.
    ``on_unavailable``: ``"run"``, ``"raise"`` or ``"skip"``. ``on_lost(reason)`` is called
    from a thread of its own when the lease is lost.

    Raises ``TaskLockError`` for what cannot work, before anything is stored.
    """

    _block: Hold | None = None
    _blocks = 0

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
        self._on_unavailable = on_unavailable or settings.ON_UNAVAILABLE
        if self._on_unavailable not in ("run", "raise", "skip"):
            raise TaskLockError(
                f"on_unavailable must be 'run', 'raise' or 'skip', not {on_unavailable!r}", name=self.name
            )
        self._on_lost = partial(_lost, weakref.ref(self), self.name, on_lost)
        self._last: Hold | None = None
        self.conflict: TaskLockAcquireError | None = None
        """Why the last ``acquire()`` through this object returned False."""

    def acquire(self, blocking: bool | None = None, blocking_timeout: Duration | None = None) -> bool:
        """Take the lock; True if it is yours now. False: busy, or not free in time.

        With the store down, ``on_unavailable`` decides: True without the lock (``"run"``),
        False (``"skip"``) or ``BackendUnavailable``. Raises ``TaskLockError`` on re-entry,
        unless ``reentrant``.
        """
        wait = self._wait(blocking, blocking_timeout)
        if self._reenter():
            return True
        hold, ask = self._begin()
        try:
            return self._settle(hold, take(hold.backend, ask, wait, hold.lease is None))
        except BackendUnavailable as error:
            return self._unavailable(hold, ask, error)
        except BaseException:
            self._drop(hold)
            try:
                hold.backend.release(hold.name, hold.token)
            except Exception:
                heartbeat.abandon(hold, ask.ttl)
            raise

    async def aacquire(self, blocking: bool | None = None, blocking_timeout: Duration | None = None) -> bool:
        """``acquire`` for coroutines. A cancelled one leaves nothing behind."""
        wait = self._wait(blocking, blocking_timeout)
        if self._reenter():
            return True
        hold, ask = self._begin()
        try:
            return self._settle(hold, await atake(hold.backend, ask, wait, hold.lease is None))
        except BackendUnavailable as error:
            return self._unavailable(hold, ask, error)
        except BaseException:  # a cancelled task had better not await its own clean-up
            self._drop(hold)
            heartbeat.abandon(hold, ask.ttl)
            raise

    def release(self) -> Released:
        """Give the lock back, only if it is still yours; what was found, true only for *released*.

        The last of several re-entries releases. With the store down it is released as soon
        as that answers. Raises ``TaskLockError`` if it was not acquired through this object.
        """
        hold = self._mine()
        hold.count -= 1
        if hold.count:
            return Released.RELEASED
        lost = False
        try:
            lost = bool(hold.lost)
            self._drop(hold)
            outcome = Released.GONE if hold.unlocked else hold.backend.release(hold.name, hold.token)
        except BackendUnavailable as error:
            outcome = self._later(hold, error)
        except BaseException:
            heartbeat.abandon(hold, self._hold_ms)
            raise
        return told_released(self, hold, outcome, lost)

    async def arelease(self) -> Released:
        """``release`` for coroutines. If it is cancelled, the lock is released all the same."""
        hold = self._mine()
        hold.count -= 1
        if hold.count:
            return Released.RELEASED
        lost = False
        try:
            lost = bool(hold.lost)
            self._drop(hold)
            outcome = Released.GONE if hold.unlocked else await hold.backend.arelease(hold.name, hold.token)
        except BackendUnavailable as error:
            outcome = self._later(hold, error)
        except BaseException:
            heartbeat.abandon(hold, self._hold_ms)
            raise
        return told_released(self, hold, outcome, lost)

    def extend(self, timeout: Duration | None = None) -> bool:
        """Start the timeout again from now, with ``timeout`` seconds or its own. False: no longer yours.

        True, as ``acquire()`` said, when run without the lock. Raises ``BackendUnavailable``.
        """
        hold, ttl, hold_ms = self._extending(timeout)
        if hold.unlocked:
            return True
        asked = monotonic()
        return self._extended(hold, asked, ttl, hold_ms, hold.backend.extend(self.name, hold.token, ttl, hold_ms))

    async def aextend(self, timeout: Duration | None = None) -> bool:
        """``extend`` for coroutines."""
        hold, ttl, hold_ms = self._extending(timeout)
        if hold.unlocked:
            return True
        asked = monotonic()
        return self._extended(
            hold, asked, ttl, hold_ms, await hold.backend.aextend(self.name, hold.token, ttl, hold_ms)
        )

    @property
    def taken(self) -> bool:
        """Whether there is something to release: held, lost, or run without the lock."""
        return self._find() is not None

    @property
    def held(self) -> bool:
        """Whether it is certainly still yours."""
        hold = self._find()
        return hold is not None and not hold.unlocked and not hold.lost

    @property
    def lost(self) -> bool:
        """Whether the lease is certainly gone although it was not released."""
        hold = self._find()
        return hold is not None and bool(hold.lost)

    def ensure_held(self) -> None:
        """Raise ``LockLost`` if the lease is gone: call it before a step that must not run twice."""
        if reason := self._mine().lost:
            raise LockLost(f"lock {self.name!r} is lost: {reason}", name=self.name)

    @property
    def fence(self) -> int:
        """A number greater than that of every earlier holder of this name; 0 when run without the lock."""
        return self._mine().fence

    @property
    def token(self) -> str:
        """The proof of ownership. Secret."""
        return self._mine().token

    @property
    def time_left(self) -> float:
        """Seconds until the timeout."""
        return max(0.0, self._mine().until - monotonic())

    def info(self) -> LockInfo | None:
        """Who has the lock now, whoever that is. Raises ``BackendUnavailable``."""
        record = get_backend().get(self.name)
        return None if record is None else lock_info(record)

    async def ainfo(self) -> LockInfo | None:
        """``info`` for coroutines."""
        record = await get_backend().aget(self.name)
        return None if record is None else lock_info(record)

    def locked(self) -> bool:
        """Whether anybody has it. Raises ``BackendUnavailable``."""
        return get_backend().get(self.name) is not None

    def __enter__(self) -> Self:
        acquired = False
        try:
            acquired = self.acquire()
            if acquired:
                return self.enter()
        except BaseException:
            if acquired:
                self._struck()
            raise
        raise self.conflict or TaskLockAcquireError(f"lock {self.name!r} is busy", name=self.name)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if self._last is not None and self._last.foreign:
                return  # a forked child leaves the block of its parent, which still holds the lock
            self.leave()
            self.release()
        except BaseException:
            self._struck()
            raise

    def __del__(self) -> None:
        # Only a time limit that struck as ``__exit__`` was called leaves a block without leaving it.
        hold = self._block
        if self._blocks and hold is not None and not (hold.released or hold.foreign or sys.is_finalizing()):
            heartbeat.abandon(hold, hold.lease or self._hold_ms)

    async def __aenter__(self) -> Self:
        if not await self.aacquire():
            raise self.conflict or TaskLockAcquireError(f"lock {self.name!r} is busy", name=self.name)
        return self.enter()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.leave()
        await self.arelease()

    def enter(self) -> Self:
        """Become ``current_lock()``; for code that acquires and releases around a body by itself."""
        try:
            self._block = self._mine()
            self._block.entered.append(_current.get())
            self._blocks += 1
            _current.set(weakref.ref(self))
        except BaseException:  # a time limit may strike anywhere; the caller does not know of the lock yet
            self.release()
            raise
        return self

    def leave(self) -> None:
        """Undo ``enter``."""
        hold = self._find() or self._block  # the latter if it was released inside of its block
        if hold is not None and hold.entered:
            self._blocks -= 1
            _current.set(hold.entered.pop())  # type: ignore[arg-type]

    def __repr__(self) -> str:
        return f"<TaskLock {self.name!r}{' held' if self.held else ''}>"

    def _wait(self, blocking: bool | None, blocking_timeout: Duration | None) -> float:
        if blocking is None and blocking_timeout is None:
            return self._patience
        return patience(blocking, blocking_timeout, self.name)

    def _begin(self) -> tuple[Hold, Ask]:
        self.conflict = None
        hold = Hold(get_backend(), self.name, self._lease_ms, self._on_lost)
        return hold, Ask(self.name, hold.token, self._lease_ms or self._hold_ms, self._hold_ms, me())

    def _settle(self, hold: Hold, taken: Taken) -> bool:
        asked, answer = taken
        if isinstance(answer, Busy):
            self.conflict = busy_error(self.name, answer)
            return False
        hold.granted(answer, asked, self._hold_ms)
        if hold.lost:
            raise BackendUnavailable("the store's answer came after the lease was over", name=self.name)
        self._last = hold
        hold.settle(self._here())
        if hold.lease is not None:
            heartbeat.follow(hold)
        told_acquired(self, hold)
        return True

    def _reenter(self) -> bool:
        hold = self._here().get(self.name)
        if hold is None or hold.released or hold.lost:
            return False
        if not self._reentrant:
            raise TaskLockError(
                f"lock {self.name!r} is already held by this thread or asyncio task; release it first, "
                "or pass reentrant=True if taking it twice is meant",
                name=self.name,
            )
        hold.count += 1
        self._last = hold
        return True

    def _unavailable(self, hold: Hold, ask: Ask, error: BackendUnavailable) -> bool:
        self._drop(hold)
        heartbeat.abandon(hold, ask.ttl)  # the answer may be lost, not the request
        action = self._on_unavailable
        told_unavailable(self.name, error, action)
        if action == "raise":
            error.name = error.name or self.name
            raise error
        if action == "skip":
            self.conflict = TaskLockAcquireError(f"lock {self.name!r} was not taken: {error}", name=self.name)
            self.conflict.__cause__ = error
            return False
        without = Hold(hold.backend, self.name, None, None)
        without.unlocked = True
        self._last = without
        without.settle(self._here())
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
        told_unavailable(self.name, error, "release later")
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
        hold = self._here().get(self.name) or self._last
        return None if hold is None or hold.released or hold.foreign else hold

    def _mine(self) -> Hold:
        hold = self._find()
        if hold is None:
            raise TaskLockError(
                f"lock {self.name!r} is not held through this object: acquire() it first", name=self.name
            )
        return hold


def _lost(lock: weakref.ref[TaskLock], name: str, listener: Callable[[str], object] | None, reason: str) -> None:
    # Weak: who drops a lock object must not be kept waiting for the garbage collector.
    told_lost(name, lock(), reason)
    if listener is not None:
        listener(reason)
