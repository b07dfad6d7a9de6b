"""A lock that outlives this process's hold on it: kept for whoever brings its token.

For a task that says ``retry()`` and must find its lock still taken when it comes back.
"""

from __future__ import annotations

from django_tasklock.conf import Duration, milliseconds
from django_tasklock.exceptions import BackendUnavailable
from django_tasklock.locks import TaskLock
from django_tasklock.reports import told_unavailable

__all__ = ["follow", "keep", "resume"]


def keep(lock: TaskLock, seconds: Duration) -> bool:
    """Stop holding ``lock`` without releasing it: its key lives for ``seconds``. False: it was lost before.

    With the store down it lives for what is left of its lease.
    """
    span = milliseconds(seconds, "seconds", name=lock.name)
    hold = lock._mine()
    lock.leave()
    lock._drop(hold)
    if hold.unlocked or hold.lost:
        return False
    try:
        return hold.backend.extend(hold.name, hold.token, span, span)
    except BackendUnavailable as error:
        told_unavailable(lock.name, error, "keep for its lease")
        return False


def resume(lock: TaskLock, token: str) -> None:
    """Let the next ``acquire()`` of ``lock`` bring ``token``: granted if the lock was kept for it, or is free."""
    lock._carried = token


def follow(lock: TaskLock, token: str) -> None:
    """Let the next ``acquire()`` of ``lock`` follow the hold with ``token``: granted over it, and only to the first
    that comes, with a token of its own. The same message may be delivered twice."""
    lock._follows = token
