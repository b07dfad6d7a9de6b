"""Locks of one process, for tests of code that uses locks. Other processes do not see them.

    TASKLOCK = {"BACKEND": "django_tasklock.backends.memory.MemoryBackend"}

It follows the whole contract: leases expire, and a release hands the lock over in order of arrival. ``reset()`` drops
every lock; ``advance(60)`` moves the clock by a minute without waiting. ``django_tasklock.testing`` has both; its reset
also clears the other things that a test leaves in its process.
"""

from django_tasklock.backends.memory.backend import MemoryBackend
from django_tasklock.backends.memory.store import advance, reset, shut

__all__ = ["MemoryBackend", "advance", "reset", "shut"]
