"""``TaskLock``: acquire, release, extend, with a heartbeat, a re-entry rule and policies.

What it promises: at most one holder per name *while the lease is intact*. What it cannot
promise, nor can any lease: that a process which was paused past its lease notices before
its next step. Guard the row that is worked on (``StateGuard``), and that does not matter.
"""

from __future__ import annotations

import sys
import weakref
from abc import ABC, abstractmethod
from types import TracebackType
from typing import Self

from django_tasklock.backends import get_backend
from django_tasklock.conf import Duration
from django_tasklock.context import Block, lock_block
from django_tasklock.db.transactions import mention_uncommitted
from django_tasklock.exceptions import BackendUnavailable, TaskLockAcquireError
from django_tasklock.locks.acquire import atake, take
from django_tasklock.locks.events import told_released
from django_tasklock.locks.heartbeat import heartbeat
from django_tasklock.locks.held import Held
from django_tasklock.locks.info import lock_info
from django_tasklock.locks.lease import Hold
from django_tasklock.types import LockInfo, Released, monotonic

__all__ = ["Acquirable", "TaskLock", "current_lock"]


def current_lock() -> TaskLock | None:
    """The innermost lock whose ``with`` block or decorated function runs here."""
    block = lock_block.get()
    return None if block is None else block.lock()


class Acquirable(Held, ABC):
    """The verbs of a ``TaskLock``, and of whatever else is acquired and released like one."""

    _block: Hold | None = None
    _blocks = 0

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
            error.doubt |= wait > 0  # of a place in the queue there is always some
            return self._unavailable(hold, ask, error)
        except BaseException:
            self._give_up(hold, ask.ttl)
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
            error.doubt |= wait > 0  # of a place in the queue there is always some
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
        if not self._returned(hold):
            return Released.RELEASED
        lost = False
        try:
            lost = bool(hold.lost)
            self._drop(hold)
            outcome = Released.GONE if hold.unlocked else hold.backend.release(hold.name, hold.token)
        except BackendUnavailable as error:
            outcome = self._later(hold, error)
        except BaseException:
            self._give_up(hold, self._hold_ms)
            raise
        if self.noun == "lock":
            mention_uncommitted(self.name)
        return told_released(self, hold, outcome, lost)

    async def arelease(self) -> Released:
        """``release`` for coroutines. If it is cancelled, the lock is released all the same."""
        hold = self._mine()
        if not self._returned(hold):
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

    def enter_if_free(self) -> bool:
        """``acquire()`` and ``enter()``: a time limit that strikes anywhere in between leaves nothing taken."""
        before = self._times()
        try:
            if self.acquire():
                self.enter()
                return True
        except BaseException:
            if self._times() > before:
                self.struck()
            raise
        return False

    async def aenter_if_free(self) -> bool:
        """``enter_if_free`` for coroutines."""
        before = self._times()
        try:
            if await self.aacquire():
                self.enter()
                return True
        except BaseException:
            if self._times() > before:
                self.struck(later=True)
            raise
        return False

    def __enter__(self) -> Self:
        if self.enter_if_free():
            return self
        raise self.conflict or TaskLockAcquireError(f"{self.noun} {self.name!r} is busy", name=self.name)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if self._inherited():
                return  # a forked child leaves the block of its parent, which still holds the lock
            self.leave()
            self.release()
        except BaseException:
            self.struck()
            raise

    def __del__(self) -> None:
        # Only a time limit that struck as ``__exit__`` was called leaves a block without leaving it.
        hold = self._block
        if self._blocks and hold is not None and not (hold.released or hold.foreign or sys.is_finalizing()):
            heartbeat.abandon(hold, hold.lease or self._hold_ms)

    async def __aenter__(self) -> Self:
        if await self.aenter_if_free():
            return self
        raise self.conflict or TaskLockAcquireError(f"{self.noun} {self.name!r} is busy", name=self.name)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.leave()
            await self.arelease()
        except BaseException:
            self.struck(later=True)
            raise

    @abstractmethod
    def enter(self) -> Self:
        """Become the current one; for code that acquires and releases around a body by itself."""

    @abstractmethod
    def leave(self) -> None:
        """Undo ``enter``."""

    def _inherited(self) -> bool:
        """Whether the block that is left was entered by the process that this one was forked from."""
        return self._last is not None and self._last.foreign

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name!r}{' held' if self.held else ''}>"


class TaskLock(Acquirable):
    """A lock by name, held by a thread or an asyncio task. Several may share one object.

    ``timeout``: the most one holder may have it, seconds. ``lease``: how long it outlives
    a holder that died; renewed until ``timeout``. ``lease=None``: no heartbeat, it lives
    for ``timeout``. ``blocking``, ``blocking_timeout``: what ``acquire()`` does by default
    (seconds; ``None``: no limit). ``reentrant``: whether its own holder may take it again.
    ``on_unavailable``: ``"run"``, ``"raise"`` or ``"skip"``. ``on_lost(reason)`` is called
    from a thread of its own when the lease is lost.

    Raises ``TaskLockError`` for what cannot work, before anything is stored.
    """

    def enter(self) -> Self:
        """Become ``current_lock()``; for code that acquires and releases around a body by itself."""
        try:
            self._block = self._mine()
            around = lock_block.get()
            self._block.entered.append(around)
            self._blocks += 1
            lock_block.set(Block(weakref.ref(self), self._block, around))
        except BaseException:  # a time limit may strike anywhere; the caller does not know of the lock yet
            self.release()
            raise
        return self

    def leave(self) -> None:
        """Undo ``enter``."""
        hold = self._find() or self._block  # the latter if it was released inside of its block
        if hold is not None and hold.entered:
            self._blocks -= 1
            lock_block.set(hold.entered.pop())  # type: ignore[arg-type]

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
