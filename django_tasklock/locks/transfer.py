"""Handing a lock over from one acquisition to a later one, possibly in another process, by its token.

A task that calls ``retry()`` keeps its lock this way until the retry runs.
"""

from __future__ import annotations

from django_tasklock import counts
from django_tasklock.conf import Duration, milliseconds
from django_tasklock.exceptions import BackendUnavailable
from django_tasklock.locks import events
from django_tasklock.locks.holder import holder_json
from django_tasklock.locks.lock import TaskLock
from django_tasklock.types import AcquireRequest, Grant


def keep_for(lock: TaskLock, seconds: Duration, token: str | None = None) -> bool:
    """Stop holding ``lock`` without releasing it: its key lives for ``seconds``. Return False if it was lost before.

    ``token``: replaces the token of the lease, so that a later acquisition that was given it before can
    ``supersede`` the lock from now on, and not before. With the store down the lock lives for the rest of its lease.
    """
    ttl = milliseconds(seconds, "seconds", name=lock.name)
    lease = lock.require_lease()
    lock.leave()
    lock.drop(lease)
    if lease.without_lock or lease.lost:
        return False
    try:
        if token is None:
            kept = lease.backend.extend(lease.name, lease.token, ttl, ttl)
        else:
            holder = holder_json(kept=True, kind=lease.counted_as)
            request = AcquireRequest(lease.name, token, ttl, ttl, holder, lease.token)
            kept = isinstance(lease.backend.acquire(request), Grant)
    except BackendUnavailable as error:
        events.unavailable(lock.name, error, "keep for its lease")
        return False
    if kept:
        counts.count(counts.TRANSFERRED, lease.counted_as)
    return kept


def use_token(lock: TaskLock, token: str) -> None:
    """Let the next ``acquire()`` use ``token``: it is granted if the lock was kept for that token, or is free."""
    lock.reserved_token = token


def supersede(lock: TaskLock, token: str) -> None:
    """Let ``acquire()``, where it does not wait, replace the lease with ``token``.

    It gets a token of its own, so that only one of two deliveries of the same message can do so.
    """
    lock.supersedes = token
