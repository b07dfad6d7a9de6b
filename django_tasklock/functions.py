"""The plain functions: a lock by its name alone, remembered by the process that took it.

Their locks have no heartbeat unless a ``lease`` is asked for: the key's TTL is the
timeout. They are for code that cannot use ``with``; prefer ``task_lock_context``.
"""

from __future__ import annotations

import os
import threading
from types import TracebackType

from django_tasklock.backends import get_backend
from django_tasklock.conf import DEFAULT, Duration, Lease, OnUnavailable, get_settings
from django_tasklock.exceptions import TaskLockAcquireError
from django_tasklock.holds import Hold
from django_tasklock.info import lock_info
from django_tasklock.locks import TaskLock
from django_tasklock.names import clean
from django_tasklock.reports import told_conflict, told_forced
from django_tasklock.types import LockInfo

__all__ = [
    "acquire_task_lock",
    "extend_task_lock",
    "force_release_task_lock",
    "get_lock_holder",
    "get_lock_info",
    "get_lock_ttl",
    "is_task_locked",
    "list_all_task_locks",
    "release_task_lock",
    "task_lock_context",
]

_taken: dict[str, dict[int, _ProcessLock]] = {}
_prune_at = 64


class _ProcessLock(TaskLock):
    """Belongs to the process, not to the thread or asyncio task that took it."""

    def __init__(self, name: str, timeout: Duration | None, lease: Lease) -> None:
        super().__init__(name, timeout=timeout, lease=lease)
        self._own: dict[str, Hold] = {}

    def _here(self) -> dict[str, Hold]:
        return self._own


def acquire_task_lock(name: str, timeout: Duration | None = None, lease: Lease = None) -> bool:
    """Take the lock for ``timeout`` seconds; False if anybody has it, this process included.

    The process remembers the token, so any of its threads may release or extend it. With the
    store down ``TASKLOCK["ON_UNAVAILABLE"]`` decides: ``"run"`` answers True, without a lock.
    """
    lock = _ProcessLock(name, timeout, lease)
    if lock.acquire():
        _prune()
        _taken.setdefault(lock.name, {})[threading.get_ident()] = lock
        return True
    if lock.conflict is not None:
        told_conflict(lock.conflict, "skip")
    return False


def release_task_lock(name: str) -> bool:
    """Release what ``acquire_task_lock`` took in this process; False if it was not, or no longer, ours."""
    lock = _remembered(name, forget=True)
    return lock is not None and bool(lock.release())


def extend_task_lock(name: str, timeout: Duration | None = None) -> bool:
    """Start the timeout again from now; False if it was not, or no longer, ours."""
    lock = _remembered(name, forget=False)
    return lock is not None and lock.extend(timeout)


def _remembered(name: str, *, forget: bool) -> _ProcessLock | None:
    # This thread's own first: one that took it, and lost it, must not release its successor's.
    bare = _clean(name)
    locks = _taken.get(bare)
    if not locks:
        return None
    thread = threading.get_ident()
    key = thread if thread in locks else next(reversed(locks))
    lock = locks.pop(key) if forget else locks[key]
    if not locks:
        _taken.pop(bare, None)
    return lock


def _prune() -> None:
    """Forget what lapsed and was never released, now and then."""
    global _prune_at
    if len(_taken) < _prune_at:
        return
    for name, locks in list(_taken.items()):
        if not any(lock.held for lock in locks.values()):
            _taken.pop(name, None)
    _prune_at = 64 + 2 * len(_taken)


def is_task_locked(name: str) -> bool:
    """Whether anybody has the lock. Raises ``BackendUnavailable``: not known is not free."""
    return get_backend().get(_clean(name)) is not None


def get_lock_holder(name: str) -> str | None:
    """Who has the lock, for people: ``host:pid (task[id])``. ``None`` if nobody has."""
    info = get_lock_info(name)
    return None if info is None else info.holder


def get_lock_ttl(name: str) -> float | None:
    """Seconds until the lock expires unless its holder renews it. ``None``: free, or no expiry."""
    info = get_lock_info(name)
    return None if info is None else info.ttl


def get_lock_info(name: str) -> LockInfo | None:
    """All that is known of who has the lock; ``None`` if nobody has."""
    record = get_backend().get(_clean(name))
    return None if record is None else lock_info(record)


def force_release_task_lock(name: str) -> bool:
    """Take the lock away from whoever has it; False if nobody had.

    Its holder goes on running: only a ``StateGuard`` keeps it from writing.
    """
    bare = _clean(name)
    removed = get_backend().remove(bare)
    if removed is not None:
        told_forced(bare, lock_info(removed))
    return removed is not None


def list_all_task_locks() -> list[LockInfo]:
    """Every held lock, the next to expire first; read from an index, never by a scan."""
    found: list[LockInfo] = []
    while True:
        page = get_backend().records(limit=1000, offset=len(found))
        found += map(lock_info, page)
        if len(page) < 1000:
            return found


class task_lock_context:
    """``with task_lock_context("task_lock:42"):`` or ``async with``; yields whether it was acquired.

    Busy: raises ``TaskLockAcquireError``, or with ``raise_on_fail=False`` runs the body with
    ``False``. A heartbeat renews the lock while the body runs. With ``blocking_timeout`` it
    waits that many seconds first.
    """

    def __init__(
        self,
        name: str,
        raise_on_fail: bool = True,
        *,
        timeout: Duration | None = None,
        lease: Lease = DEFAULT,
        blocking: bool | None = None,
        blocking_timeout: Duration | None = None,
        reentrant: bool = False,
        on_unavailable: OnUnavailable | None = None,
    ) -> None:
        self.raise_on_fail = raise_on_fail
        self.lock = TaskLock(
            name,
            timeout=timeout,
            lease=lease,
            blocking=blocking,
            blocking_timeout=blocking_timeout,
            reentrant=reentrant,
            on_unavailable=on_unavailable,
        )
        self._acquired = False

    def __enter__(self) -> bool:
        return self._entered(self.lock.acquire())

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._acquired:
            self.lock.__exit__(kind, error, trace)

    async def __aenter__(self) -> bool:
        return self._entered(await self.lock.aacquire())

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._acquired:
            await self.lock.__aexit__(kind, error, trace)

    def _entered(self, acquired: bool) -> bool:
        self._acquired = acquired
        if acquired:
            self.lock.enter()
            return True
        error = self.lock.conflict or TaskLockAcquireError(f"lock {self.lock.name!r} is busy", name=self.lock.name)
        told_conflict(error, "raise" if self.raise_on_fail else "skip")
        if self.raise_on_fail:
            raise error
        return False


def _clean(name: str) -> str:
    return clean(name, get_settings().KEY_PREFIX)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_taken.clear)
