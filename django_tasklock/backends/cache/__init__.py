"""Locks in any shared Django cache that has an atomic ``add``: enough to save work, not to guard data.

The cache API has ``add`` but no compare-and-delete, so what comes after the grant is a
look and then a deed, and the lock may change hands between the two. This backend does the
deed only while the lease is certain by the local clock. What remains: a process that is
stopped between look and deed until its lease is over, and a token that this process did
not acquire, for which it knows no lease. A flush, an eviction or a full cache loses
locks, too. Let a ``StateGuard`` judge the row.
"""

from django_tasklock.backends.cache.alias import weakness
from django_tasklock.backends.cache.backend import CacheBackend

__all__ = ["CacheBackend", "weakness"]
