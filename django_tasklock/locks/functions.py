"""The plain functions: a lock by its name alone. The process that acquires it remembers its token.

Their locks have no heartbeat unless a ``lease`` is given: the key expires after the timeout. They are for code that
cannot use ``with``; prefer ``task_lock_context``.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType

from django_tasklock.backends import get_backend
from django_tasklock.backends.contract import lists
from django_tasklock.conf import DEFAULT, Duration, LeaseTime, OnUnavailable, Timeout, milliseconds
from django_tasklock.exceptions import TaskLockError
from django_tasklock.locks import events
from django_tasklock.locks.info import lock_info
from django_tasklock.locks.lock import TaskLock
from django_tasklock.locks.ownership import Owner, current_owner
from django_tasklock.locks.registry import ProcessLock, process_locks
from django_tasklock.names import as_names, own_name
from django_tasklock.types import LockInfo


def acquire_task_lock(name: str, timeout: Duration | None = None, lease: LeaseTime = None) -> bool:
    """Acquire the lock for ``timeout`` seconds. Return False if it is held, also by this process.

    The process remembers the token, so any of its threads may release or extend it. With the store down
    ``TASKLOCK["ON_UNAVAILABLE"]`` decides: with ``"run"`` it returns True without a lock.
    """
    lock = ProcessLock(name, DEFAULT if timeout is None else timeout, lease)
    try:
        if lock.acquire():
            process_locks.add(lock)
            return True
    except BaseException:  # a time limit: the caller does not know that it has the lock, and cannot release it
        process_locks.discard(lock)
        lock.abandon()
        raise
    if lock.conflict is not None:
        events.conflict(lock.conflict, "skip")
    return False


def release_task_lock(name: str) -> bool:
    """Release a lock that ``acquire_task_lock`` acquired in this process. Return False if it has none, or lost it.

    With the store down it returns False, and the lock is released as soon as the store answers.
    """
    bare = own_name(name)
    while (lock := process_locks.find(bare)) is not None:
        try:
            if process_locks.discard(lock):  # otherwise another thread has released it
                return bool(lock.release())
        except BaseException:  # from a signal handler, perhaps before release() has begun: nothing else releases it
            process_locks.discard(lock)
            lock.abandon()
            raise
    return False


def extend_task_lock(name: str, timeout: Duration | None = None) -> bool:
    """Start the timeout again from now, with ``timeout`` seconds or its own.

    Return False if this process does not have the lock, or lost it; True where policy ``"run"`` went on without the
    lock. Raises ``BackendUnavailable``.
    """
    bare = own_name(name)
    if timeout is not None:
        milliseconds(timeout, "timeout", name=bare)
    lock = process_locks.find(bare)
    try:
        return lock is not None and lock.extend(timeout)
    except TaskLockError:
        if lock is not None and lock.taken:
            raise
        return False  # another thread released it just now


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
        self.lock.on_busy = "raise" if raise_on_fail else "skip"
        self._skipped: list[Owner] = []

    def __enter__(self) -> bool:
        return True if self.lock.enter_if_free() else self._busy()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if self._was_skipped() or not self.lock.taken:
                return
        except BaseException:
            self.lock.abandon()
            raise
        self.lock.__exit__(kind, error, trace)

    async def __aenter__(self) -> bool:
        return True if await self.lock.aenter_if_free() else self._busy()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not self._was_skipped() and self.lock.taken:
            await self.lock.__aexit__(kind, error, trace)

    def _busy(self) -> bool:
        error = self.lock.conflict_error()
        events.conflict(error, "raise" if self.raise_on_fail else "skip")
        if self.raise_on_fail:
            raise error
        self._skipped.append(current_owner())
        return False

    def _was_skipped(self) -> bool:
        # Threads and asyncio tasks may share one object: one of them may be skipped where another is not.
        here = current_owner()
        for number, skipped in enumerate(self._skipped):
            if skipped is here:
                del self._skipped[number]
                return True
        return False
