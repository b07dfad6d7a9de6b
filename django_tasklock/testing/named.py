"""A lock in a test: its name, or an object that has one."""

from __future__ import annotations

from typing import Protocol

from django_tasklock.names import own_name


class Named(Protocol):
    """A lock object: ``TaskLock``, or ``task.lock``."""

    name: str


Lockable = str | Named
"""A name of the present tenant, with or without the prefix, or a lock object."""


def name_of(lock: Lockable) -> str:
    """Return the name in the store. Raises ``TaskLockError`` for an invalid name."""
    return own_name(lock if isinstance(lock, str) else lock.name)
