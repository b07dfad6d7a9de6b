"""Locks in any shared Django cache that has an atomic ``add``: enough to save work, not to protect data.

The cache API has ``add`` but no compare-and-delete, so every operation after the grant first reads and then writes, and
the lock may change hands between the two. This backend writes only while the lease is certain by the local clock. Two
weaknesses remain: a process that is stopped between read and write until its lease is over, and a token that this
process did not acquire, whose lease it does not know. Locks are also lost by a flush, an eviction or a full cache.
Protect the row with a ``StateGuard``.
"""

from django_tasklock.backends.cache.alias import weakness
from django_tasklock.backends.cache.backend import CacheBackend

__all__ = ["CacheBackend", "weakness"]
