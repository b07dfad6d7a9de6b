"""Simulated mishaps of a holder in this process: its lease is lost, it is killed, another worker claims its row."""

from __future__ import annotations

import contextlib
import secrets

from django.db.models import F

from django_tasklock.backends import get_backend
from django_tasklock.columns import EPOCH, TOKEN
from django_tasklock.exceptions import BackendUnavailable, TaskLockError
from django_tasklock.guards import claim as claims
from django_tasklock.locks.functions import process_locks
from django_tasklock.locks.heartbeat import heartbeat, loss_reports
from django_tasklock.locks.lease import Lease
from django_tasklock.locks.lock import TaskLock
from django_tasklock.locks.semaphore import ConcurrencyLimiter
from django_tasklock.locks.taken import leases_here
from django_tasklock.testing import others
from django_tasklock.testing.named import Lockable, name_of

SAYS = "a test says so"
DEAD = -1  # the generation of no process


def lose(lock: Lockable | ConcurrencyLimiter, reason: str = SAYS) -> None:
    """Lose this process's lease of ``lock`` for this ``reason``, as if it had not been renewed in time.

    ``lock``: the lock's name, its object, or the limiter through which the caller has its permit. The store forgets the
    lease, so that others can acquire the lock. The holder learns of the loss at once: ``on_lost`` and
    ``signals.lock_lost`` have been called when this returns. It works with every store, in synchronous code.

    Raises ``TaskLockError`` if this process does not hold it.

        >>> with task_lock_context("report"):
        ...     testing.lose("report")
        ...     current_lock().ensure_held()
        Traceback (most recent call last):
        django_tasklock.exceptions.LockLost: lock 'report' is lost: a test says so
    """
    lease = lock.lease if isinstance(lock, TaskLock | ConcurrencyLimiter) else None
    if lease is None and not isinstance(lock, ConcurrencyLimiter):
        lease = _find(name_of(lock))
    if lease is None or lease.lost:
        name = lock if isinstance(lock, str) else lock.name
        noun = lock.noun if isinstance(lock, ConcurrencyLimiter) else "lock"
        raise TaskLockError(f"this process does not hold {noun} {name!r}", name=name)
    first = lease.mark_lost(reason)  # before the store forgets it, so that a renewal does not report it
    with contextlib.suppress(BackendUnavailable):  # no other caller can acquire it in an unavailable store
        lease.backend.release(lease.name, lease.token)
    if first:
        for report in loss_reports([(lease, reason)]):
            report()


def kill_holder(lock: Lockable) -> None:
    """Simulate the death of the holder of ``lock``: the lock stays in the store until its lease ends.

    The holder is in this process, or made by ``lock_held``. Its lease is not renewed any more. If its body runs on in
    this process, it releases nothing, and does not close its guarded row. Raises ``TaskLockError`` if neither this
    process nor ``lock_held`` holds the lock.

        >>> with TaskLock("report", lease=60):
        ...     testing.kill_holder("report")
        >>> is_task_locked("report")
        True
        >>> testing.advance(61)
        >>> is_task_locked("report")
        False
    """
    name = name_of(lock)
    other = others.find(name)
    if other is not None:
        other.kill()
        return
    lease = _find(name)
    if lease is None:
        raise TaskLockError(f"neither this process nor lock_held() holds lock {name!r}", name=name)
    bare = process_locks.find(name)
    if bare is not None and bare.lease is lease:
        process_locks.discard(bare)
    claim = claims.current.get()
    if claim is not None and claim.token == lease.token:
        claim.taken = False  # so that the end of the body does not close the row
    heartbeat.forget(lease)
    lease.generation = DEAD  # as in a forked child, which is not the holder


def overtake() -> None:
    """Let another worker claim the guarded row of the running body, whose writes are refused from then on.

    It is as if this process had been paused past its lease. It also loses its lock, and learns of that only when it
    asks. Raises ``TaskLockError`` outside of a guarded body, and for a model without the two columns of
    ``GuardedModel``.

        >>> @model_lock(Video, "video:{pk}", pk="pk", guard=guard)
        ... def process(pk):
        ...     testing.overtake()
        ...     current_claim().update(progress=50)
        >>> process(video.pk)
        Traceback (most recent call last):
        django_tasklock.exceptions.StaleClaim: ...
    """
    claim = claims.current_claim()
    if not claim.has_columns:
        raise TaskLockError(
            f"{claim.name} has no columns {TOKEN} and {EPOCH}, so another claim cannot take its row: derive its model"
            " from GuardedModel"
        )
    claim.rows().update(**{TOKEN: secrets.token_hex(16), EPOCH: F(EPOCH) + 1})
    for lease in _leases():
        if lease.token == claim.token:
            lease.backend.release(lease.name, lease.token)


def _find(name: str) -> Lease | None:
    """Return this process's lease of the lock, if it has the lock now."""
    record = get_backend().get(name)
    return None if record is None else next((one for one in _leases(name) if one.token == record.token), None)


def _leases(name: str = "") -> list[Lease]:
    """Return the leases of this process, of a ``name`` those without a heartbeat as well."""
    bare = process_locks.find(name) if name else None
    return [*heartbeat.leases(), *leases_here(), *([] if bare is None else [bare.lease])]
