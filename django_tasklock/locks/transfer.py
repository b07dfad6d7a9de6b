"""A lock that outlives this process's lease on it: kept for whoever brings its token.

For a task that says ``retry()`` and must find its lock still taken when it comes back.
"""

from __future__ import annotations

from django_tasklock.conf import Duration, milliseconds
from django_tasklock.exceptions import BackendUnavailable
from django_tasklock.locks import events
from django_tasklock.locks.holder import holder_json
from django_tasklock.locks.lock import TaskLock
from django_tasklock.types import AcquireRequest, Grant


def keep_for(lock: TaskLock, seconds: Duration, token: str | None = None) -> bool:
    """Stop holding ``lock`` without releasing it: its key lives for ``seconds``. False: it was lost before.

    ``token``: another one than that of the lease, which whoever was told of it beforehand may ``supersede``
    from now on, and not before. With the store down the lock lives for what is left of its lease.
    """
    span = milliseconds(seconds, "seconds", name=lock.name)
    lease = lock.mine()
    lock.leave()
    lock.drop(lease)
    if lease.without_lock or lease.lost:
        return False
    try:
        if token is None:
            return lease.backend.extend(lease.name, lease.token, span, span)
        request = AcquireRequest(lease.name, token, span, span, holder_json(kept=True), lease.token, kind=lease.kind)
        return isinstance(lease.backend.acquire(request), Grant)
    except BackendUnavailable as error:
        events.unavailable(lock.name, error, "keep for its lease")
        return False


def bring(lock: TaskLock, token: str) -> None:
    """Let the next ``acquire()`` of ``lock`` bring ``token``: granted if the lock was kept for it, or is free."""
    lock.brings = token


def supersede(lock: TaskLock, token: str) -> None:
    """Let ``lock``, where it does not wait, be granted over the lease with ``token``.

    Once, and with a token of its own, because the same message may be delivered twice.
    """
    lock.supersedes = token
