"""Assertions about locks. Their messages name the holder."""

from __future__ import annotations

from django_tasklock.backends import get_backend
from django_tasklock.testing.named import Lockable, name_of
from django_tasklock.types import Record


def assert_locked(lock: Lockable) -> None:
    """Raise ``AssertionError`` if ``lock``, a name or a lock object, is free.

    >>> testing.assert_locked("report")
    Traceback (most recent call last):
    AssertionError: the lock 'report' is free
    """
    if _record(lock) is None:
        raise AssertionError(f"the lock {name_of(lock)!r} is free")


def assert_not_locked(lock: Lockable) -> None:
    """Raise ``AssertionError``, which names the holder, if ``lock``, a name or a lock object, is held.

    >>> with testing.lock_held("report", host="web1", pid=7):
    ...     testing.assert_not_locked("report")
    Traceback (most recent call last):
    AssertionError: the lock 'report' is held by web1:7
    """
    record = _record(lock)
    if record is not None:
        raise AssertionError(f"the lock {name_of(lock)!r} is held by {record.holder}")


def _record(lock: Lockable) -> Record | None:
    return get_backend().get(name_of(lock))
