"""The store of a test: in memory, out of order, or none at all; and its clock."""

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

BACKENDS = {
    "memory": "django_tasklock.backends.memory.MemoryBackend",
    "off": "django_tasklock.testing.off.GrantingBackend",
}
"""The stores that a test may ask for, beside the one of its settings."""


def setting(name: str) -> dict[str, Any]:
    """Return ``TASKLOCK`` with another store, ``"memory"`` or ``"off"``: the rest is as the settings have it.

    Raises ``TaskLockError`` if there is no such store.
    """
    if name not in BACKENDS:
        known = ", ".join(map(repr, (*BACKENDS, "settings")))
        raise TaskLockError(f"there is no store {name!r} for tests; known: {known}")
    return {**getattr(settings, "TASKLOCK", {}), "BACKEND": BACKENDS[name]}


@contextmanager
def memory_store() -> Iterator[None]:
    """Have locks, limits and permits in memory in this block, with nothing held, counted or waited for.

        >>> with testing.memory_store():
        ...     acquire_task_lock("report")
        True

    The fixture ``tasklock`` and ``TaskLockTestMixin`` do this for each test.
    """
    with override_settings(TASKLOCK=setting("memory")):
        reset()
        try:
            yield
        finally:
            reset()


@contextmanager
def locks_off() -> Iterator[None]:
    """Grant every lock, permit and rate in this block: for tests of something else.

    Nobody is ever in anybody's way, no call waits, and nothing is listed. The holder holds its lock until it releases
    it. Guards judge their rows as always, and whoever takes its own lock twice is refused, which is its mistake.

        >>> with testing.locks_off():
        ...     acquire_task_lock("report"), acquire_task_lock("report"), is_task_locked("report")
        (True, True, False)
    """
    with override_settings(TASKLOCK=setting("off")):
        yield


@contextmanager
def store_down() -> Iterator[None]:
    """Let nobody be able to ask the memory store in this block, as if it were down.

    Policies decide then: ``on_unavailable`` of locks, permits and rate limits. What is held is held until its lease
    ends. After the block the store has what it had before. Raises ``TaskLockError`` where another store is in force.

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
    """Let time pass on the clock of the memory store: leases end, windows of rate limits pass, who waits looks again.

    Raises ``TaskLockError`` for zero and negative durations, and where another store is in force, whose clock is its
    server's. The clock of this process is not moved: it learns that it has lost a lock at the next renewal.

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
