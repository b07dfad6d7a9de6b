"""Events of locks: each is logged and sent as a signal, here and nowhere else."""

from __future__ import annotations

import logging
from typing import Final, NamedTuple, Protocol

from django_tasklock import counts, signals
from django_tasklock.backends.contract.stores import LeaseStore
from django_tasklock.context import Named
from django_tasklock.exceptions import BackendUnavailable, TaskLockAcquireError
from django_tasklock.host import host
from django_tasklock.locks.info import lock_info
from django_tasklock.locks.lease import Lease
from django_tasklock.logs import log, logger
from django_tasklock.types import Busy, Grant, Record, Released, monotonic


class _Words(NamedTuple):
    """The events that the same thing is counted as, for locks and for permits."""

    granted: str
    waited: str
    released: str
    expired: str
    forced: str


_COUNTED: Final = {
    "lock": _Words(counts.ACQUIRED, counts.WAITED, counts.RELEASED, counts.EXPIRED, counts.FORCED),
    "limiter": _Words(
        counts.GRANTED, counts.GRANTED_LATE, counts.PERMIT_RELEASED, counts.PERMIT_EXPIRED, counts.PERMIT_FORCED
    ),
}


class Granted(Protocol):
    """A lease, or what is left of it."""

    backend: LeaseStore
    counted_as: str
    granted_at: float


def count_grant(lease: Granted, waited: float | None = None) -> None:
    """Count a grant that arrives now. ``waited``: for how many seconds; ``None``: not at all."""
    lease.granted_at = monotonic()
    words = _COUNTED[lease.backend.noun]
    if waited is None:
        counts.count(words.granted, lease.counted_as)
    else:
        counts.count(words.waited, lease.counted_as, waited * 1000)


def count_release(lease: Granted) -> None:
    """Count a release, unless the grant was not counted either."""
    if lease.granted_at:
        held = (monotonic() - lease.granted_at) * 1000
        counts.count(_COUNTED[lease.backend.noun].released, lease.counted_as, held)


def count_expired(lease: Granted, answer: Grant | Busy) -> None:
    """Count the leases of others that this request to the store has found expired."""
    if answer.expired:
        counts.count(_COUNTED[lease.backend.noun].expired, lease.counted_as, number=answer.expired)


def holder_died(freed: Record, name: str, noun: str = "lock") -> None:
    """Report that a holder's process is dead and its lock was freed for that, before its lease would have ended it."""
    log(logging.WARNING, "%s %r: %s died, it is free", noun, name, freed.holder)
    counts.count(_COUNTED[noun].expired, freed.holder.kind)


def count_busy(lease: Lease) -> None:
    """Count that the lock is busy."""
    if not lease.on_busy:
        return
    if lease.backend.noun == "lock":
        counts.count(f"{counts.CONFLICT}:{lease.on_busy}", lease.counted_as)
    else:
        counts.count(counts.REFUSED, lease.counted_as)


def acquired(lock: Named, lease: Lease) -> None:
    """Report that this process has acquired the lock: at DEBUG, because it is the usual case."""
    if logger.isEnabledFor(logging.DEBUG):
        log(logging.DEBUG, "%s %r acquired, with the fence %s%s", lock.noun, lock.name, lease.fence, host().asker())
    if signals.lock_acquired.receivers:
        signals.send(signals.lock_acquired, lock.name, lock=lock, fence=lease.fence)


def released(lock: Named, lease: Lease, outcome: Released, lost: bool) -> Released:
    """Report a release and return its outcome: a lease that was lost before was not held to the end."""
    if lost and outcome is Released.RELEASED:
        outcome = Released.GONE
    if outcome in (Released.GONE, Released.NOT_YOURS) and not lease.without_lock:
        log(
            logging.WARNING,
            "%s %r was no longer ours when it was released (%s): %s",
            lock.noun,
            lock.name,
            outcome.value,
            lease.lost or "unknown why",
        )
    elif logger.isEnabledFor(logging.DEBUG):
        log(logging.DEBUG, "%s %r released", lock.noun, lock.name)
    if signals.lock_released.receivers:
        signals.send(signals.lock_released, lock.name, lock=lock, outcome=outcome)
    return outcome


def lost(lease: Lease, reason: str) -> None:
    """Report that the lease is lost while the body runs. A lease without a lock object is not reported.

    Call its ``on_lost`` before: that is what stops the body, and receivers of a signal may be slow.
    """
    if lease.lock is None:
        return
    counts.count(counts.LOST, lease.counted_as)
    try:
        log(logging.ERROR, "%s %r is lost while its holder runs: %s", lease.backend.noun, lease.name, reason)
    finally:  # with ``lock=None`` if the object has been garbage-collected
        signals.send(signals.lock_lost, lease.name, lock=lease.lock(), reason=reason)


def release_requested(lease: Lease) -> None:
    """Report that the release of the lock is requested while its holder runs."""
    if lease.lock is None:
        return
    try:
        log(logging.INFO, "lock %r: its holder is asked to give it back", lease.name)
    finally:
        signals.send(signals.lock_asked, lease.name, lock=lease.lock())


def conflict(error: TaskLockAcquireError, action: str) -> None:
    """Report that a call found the lock busy, and the ``action`` that followed."""
    word = {"skip": "skipped", "raise": "refused"}.get(action, action)
    log(logging.INFO, "%s: %s%s", word, error, host().asker())
    signals.send(signals.lock_conflict, error.name or "", error=error, action=action)


def unavailable(name: str, error: BackendUnavailable, action: str, noun: str = "lock") -> None:
    """Report that the store is unavailable, and the ``action`` that follows."""
    log(logging.WARNING, "%s %r: %s; policy: %s", noun, name, error, action)
    signals.send(signals.store_unavailable, name, error=error, action=action)


def forced(name: str, record: Record, noun: str = "lock") -> None:
    """Report that a lock was released by force. Its holder goes on running."""
    counts.count(_COUNTED[noun].forced, record.holder.kind)
    removed = lock_info(record)
    log(
        logging.WARNING,
        "%s %r was released by force; it was held by %s for %.1f s",
        noun,
        name,
        removed.holder,
        removed.held_for,
    )
    signals.send(signals.lock_forced, name, info=removed)
