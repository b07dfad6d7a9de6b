"""The plain functions: a lock by its name alone. The process that acquires it remembers its token.

Their locks have no heartbeat unless a ``lease`` is given: the key expires after the timeout. They are for code that
cannot use ``with``; prefer ``task_lock_context``.
"""

from __future__ import annotations

import sys
import threading
import weakref
from collections.abc import Sequence
from types import FrameType, TracebackType
from typing import NamedTuple

from django_tasklock.backends import get_backend
from django_tasklock.backends.contract import lists
from django_tasklock.conf import DEFAULT, Duration, LeaseTime, OnUnavailable, Timeout, milliseconds
from django_tasklock.locks import events
from django_tasklock.locks.info import lock_info
from django_tasklock.locks.lease import Lease, Refusal
from django_tasklock.locks.lock import TaskLock, generator_in
from django_tasklock.names import as_names, own_name
from django_tasklock.types import LockInfo

MOST_LAPSED = 1000  # locks that have expired without a release and are remembered


class ProcessLock(TaskLock):
    """A lock that belongs to the process: any thread or asyncio task may release it, and none takes it twice."""

    def _reenter(self) -> None:
        return None

    def _taken(self, lease: Lease) -> Lease:
        self._latest = weakref.ref(lease)
        return lease


class Remembered(NamedTuple):
    """A lock that the plain functions have acquired, and its lease."""

    lock: ProcessLock
    lease: Lease


class ProcessLocks:
    """The locks of the plain functions by name. Bounded: of those that have expired the oldest are forgotten."""

    def __init__(self) -> None:
        self._mutex = threading.RLock()
        self.locks: dict[str, list[Remembered]] = {}
        """The locks of each name, the latest last."""
        self._count = 0
        self._prune_at = 2 * MOST_LAPSED

    def __len__(self) -> int:
        return self._count

    def add(self, one: Remembered) -> None:
        """Add a lock that was just acquired."""
        with self._mutex:
            self.locks.setdefault(one.lease.name, []).append(one)
            self._count += 1
            if self._count >= self._prune_at:
                self.prune()

    def find(self, name: str) -> Remembered | None:
        """Return the caller's own lock of this name, or else the latest.

        The caller's own comes first, so that a caller that has lost its lock does not release its successor's.
        """
        with self._mutex:
            locks = self.locks.get(name, ())
            own = (one for one in reversed(locks) if one.lease.taker.here())
            return next(own, None) or (locks[-1] if locks else None)

    def discard(self, one: Remembered) -> bool:
        """Remove a lock. Return False if it is not there any more."""
        with self._mutex:
            locks = self.locks.get(one.lease.name, [])
            if one not in locks:
                return False
            locks.remove(one)
            self._count -= 1
            if not locks:
                del self.locks[one.lease.name]
            return True

    def prune(self) -> None:
        """Remove the oldest of the locks that have expired."""
        lapsed = [one for locks in self.locks.values() for one in locks if one.lease.lost]
        lapsed.sort(key=lambda one: one.lease.granted_at)
        for one in lapsed[:-MOST_LAPSED]:
            self.discard(one)
        self._prune_at = 2 * max(MOST_LAPSED, self._count)


process_locks = ProcessLocks()
"""The locks that the plain functions have acquired in this process."""


def forget() -> None:
    """Forget the locks that the plain functions have acquired in this process."""
    process_locks.__init__()  # type: ignore[misc]


def after_fork() -> None:
    """Begin empty, in place: other modules have imported the object. A thread of the parent may hold the mutex."""
    forget()


def acquire_task_lock(name: str, timeout: Duration | None = None, lease: LeaseTime = None) -> bool:
    """Acquire the lock for ``timeout`` seconds. Return False if it is held, also by this process.

    The process remembers the token, so any of its threads may release or extend it. With the store down
    ``TASKLOCK["ON_UNAVAILABLE"]`` decides: with ``"run"`` it returns True without a lock.
    """
    lock = ProcessLock(name, timeout=DEFAULT if timeout is None else timeout, lease=lease, on_unavailable=None)
    taken = lock.take()
    if isinstance(taken, Refusal):
        events.conflict(taken.error, "skip")
        return False
    process_locks.add(Remembered(lock, taken))
    return True


def release_task_lock(name: str) -> bool:
    """Release a lock that ``acquire_task_lock`` acquired in this process. Return False if it has none, or lost it.

    With the store down it returns False, and the lock is released as soon as the store answers.
    """
    bare = own_name(name)
    while (one := process_locks.find(bare)) is not None:
        if process_locks.discard(one):  # otherwise another thread has released it
            return bool(one.lock.give(one.lease))
    return False


def extend_task_lock(name: str, timeout: Duration | None = None) -> bool:
    """Start the timeout again from now, with ``timeout`` seconds or its own.

    Return False if this process does not have the lock, or lost it; True where policy ``"run"`` went on without the
    lock. Raises ``BackendUnavailable``.
    """
    bare = own_name(name)
    if timeout is not None:
        milliseconds(timeout, "timeout", name=bare)
    one = process_locks.find(bare)
    return one is not None and one.lock.extend(timeout, one.lease)


def is_task_locked(name: str) -> bool:
    """Tell whether the lock is held by anyone. Raises ``BackendUnavailable``, because unknown is not free."""
    return get_backend().get(own_name(name)) is not None


def get_lock_holder(name: str) -> str | None:
    """Return the holder as text: ``host:pid (task[id])``; ``None`` if the lock is free.

    Raises ``BackendUnavailable``.
    """
    info = get_lock_info(name)
    return None if info is None else info.holder


def get_lock_ttl(name: str) -> float | None:
    """Return the seconds until the lock expires unless it is renewed; ``None``: it is free, or does not expire.

    Raises ``BackendUnavailable``.
    """
    info = get_lock_info(name)
    return None if info is None else info.ttl


def get_lock_info(name: str) -> LockInfo | None:
    """Return what is known of the lock and its holder; ``None`` if it is free. Raises ``BackendUnavailable``."""
    record = get_backend().get(own_name(name))
    return None if record is None else lock_info(record)


def force_release_task_lock(name: str) -> bool:
    """Release the lock of any holder. Return False if it was free.

    The holder goes on running: only a ``StateGuard`` keeps it from writing. Raises ``BackendUnavailable``.
    """
    bare = own_name(name)
    removed = get_backend().remove(bare)
    if removed is not None:
        events.forced(bare, removed)
    return removed is not None


def list_all_task_locks() -> list[LockInfo]:
    """Return every held lock, the next to expire first. It reads an index and never scans the keys.

    The list is complete although locks are renewed and released meanwhile. Raises ``BackendUnavailable``.
    """
    records = [record for part in lists.each(get_backend()) for record in part]
    return [lock_info(record) for record in sorted(records, key=lambda record: record.lease_ends)]


class task_lock_context:  # noqa: N801  # used like a function
    """Acquire a lock for a block: ``with task_lock_context("task_lock:42") as acquired:``, or ``async with``.

    A busy lock raises ``TaskLockAcquireError``; with ``raise_on_fail=False`` the block runs with ``False``. A heartbeat
    renews the lock while the block runs. With ``blocking_timeout`` it waits that many seconds first. A list of names is
    one lock that has all of them.
    """

    def __init__(
        self,
        name: str | Sequence[str],
        raise_on_fail: bool = True,
        *,
        timeout: Timeout = DEFAULT,
        lease: LeaseTime = DEFAULT,
        blocking: bool | None = None,
        blocking_timeout: Duration | None = None,
        reentrant: bool = False,
        on_unavailable: OnUnavailable | None = None,
    ) -> None:
        self.raise_on_fail = raise_on_fail
        self.lock = TaskLock(
            *as_names(name),
            timeout=timeout,
            lease=lease,
            blocking=blocking,
            blocking_timeout=blocking_timeout,
            reentrant=reentrant,
            on_unavailable=on_unavailable,
        )
        self._action = "raise" if raise_on_fail else "skip"

    def __enter__(self) -> bool:
        return self._enter(self.lock.take(action=self._action), sys._getframe(1))

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if (lease := self.lock.leave_block(generator_in(sys._getframe(1)))) is not None:
            self.lock.give(lease)

    async def __aenter__(self) -> bool:
        return self._enter(await self.lock.atake(action=self._action), sys._getframe(1))

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if (lease := self.lock.leave_block(generator_in(sys._getframe(1)))) is not None:
            await self.lock.agive(lease)

    def _enter(self, answer: Lease | Refusal, frame: FrameType) -> bool:
        if isinstance(answer, Refusal):
            events.conflict(answer.error, self._action)
            if self.raise_on_fail:
                raise self.lock.block_refused(answer)
            return False
        self.lock.enter(answer, generator_in(frame))
        return True
