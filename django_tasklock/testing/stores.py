"""The store of a test: in memory, or unavailable; and its clock."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from django.conf import settings
from django.test.utils import override_settings

from django_tasklock.backends import get_backend, memory
from django_tasklock.backends.memory import MemoryBackend
from django_tasklock.conf import Duration, milliseconds
from django_tasklock.exceptions import TaskLockError
from django_tasklock.testing.process import reset


def memory_setting() -> dict[str, Any]:
    """Return the ``TASKLOCK`` setting with the memory store."""
    return {**getattr(settings, "TASKLOCK", {}), "BACKEND": "django_tasklock.backends.memory.MemoryBackend"}


@contextmanager
def memory_store() -> Iterator[None]:
    """Keep locks, limits and permits in an empty memory store in this block.

        >>> with testing.memory_store():
        ...     acquire_task_lock("report")
        True

    The fixture ``tasklock`` and ``TaskLockTestMixin`` do this for each test.
    """
    with override_settings(TASKLOCK=memory_setting()):
        reset()
        try:
            yield
        finally:
            reset()


@contextmanager
def store_down() -> Iterator[None]:
    """Make the memory store unavailable in this block.

    The policies apply: ``on_unavailable`` of locks, permits and rate limits. Held locks stay held until their leases
    end. After the block the store has what it had before. Raises ``TaskLockError`` with another store.

        >>> with testing.store_down(), TaskLock("report", on_unavailable="run") as lock:
        ...     lock.ensure_held()
        Traceback (most recent call last):
        django_tasklock.exceptions.LockLost: lock 'report' is not held: the store could not be asked, ...
    """
    _ensure_memory("store_down() shuts")
    memory.shut(True)
    try:
        yield
    finally:
        memory.shut(False)


def advance(seconds: Duration) -> None:
    """Advance the clock of the memory store: leases end, windows of rate limits pass, and waiters try again.

    The clock of this process does not change: the process learns of a lost lock at the next renewal. Raises
    ``TaskLockError`` for zero and negative durations, and with another store, whose clock is its server's.

        >>> acquire_task_lock("report", timeout=300)
        True
        >>> testing.advance(301)
        >>> acquire_task_lock("report", timeout=300)
        True
    """
    duration = milliseconds(seconds, "seconds")
    _ensure_memory("advance() moves the clock of")
    memory.advance(duration / 1000)


def _ensure_memory(what: str) -> None:
    if not isinstance(get_backend(), MemoryBackend):
        kind = type(get_backend()).__name__
        raise TaskLockError(f"{what} the memory store, but the store in force is a {kind}")
