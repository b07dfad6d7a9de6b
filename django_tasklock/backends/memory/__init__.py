"""Locks of one process, for tests of code that uses locks. Other processes do not see them.

    TASKLOCK = {"BACKEND": "django_tasklock.backends.memory.MemoryBackend"}

The whole contract holds: leases lapse, releases hand over in order of arrival. ``reset()``
forgets every lock in it; ``advance(60)`` lets a minute pass without waiting. ``django_tasklock.testing``
has both, and forgets what else a test leaves in its process.
"""

from django_tasklock.backends.memory.backend import MemoryBackend
from django_tasklock.backends.memory.store import advance, reset, shut

__all__ = ["MemoryBackend", "advance", "reset", "shut"]
