"""Nothing is swallowed: what happened to a lock becomes a log line and a signal, in one place."""

from __future__ import annotations

import logging

from django_tasklock import signals
from django_tasklock.context import Named
from django_tasklock.exceptions import BackendUnavailable, TaskLockAcquireError
from django_tasklock.locks.lease import Lease
from django_tasklock.logs import log
from django_tasklock.types import LockInfo, Released


def acquired(lock: Named, lease: Lease) -> None:
    """Tell that somebody of this process has the lock. No log line: this is the rule, not the exception."""
    signals.send(signals.lock_acquired, lock.name, lock=lock, fence=lease.fence)


def released(lock: Named, lease: Lease, outcome: Released, lost: bool) -> Released:
    """Return the outcome to report, and tell it: one never claims to have held to the end what was lost before."""
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
    if signals.lock_released.receivers:
        signals.send(signals.lock_released, lock.name, lock=lock, outcome=outcome)
    return outcome


def lost(lease: Lease, reason: str) -> None:
    """Tell that the lease is gone while the body runs. Nothing, if it was not taken through a lock object."""
    if lease.lock is None:
        return
    try:
        try:
            log(logging.ERROR, "%s %r is lost while its holder runs: %s", lease.backend.noun, lease.name, reason)
        finally:  # with ``lock=None`` if nobody has that object any more
            signals.send(signals.lock_lost, lease.name, lock=lease.lock(), reason=reason)
    finally:
        if lease.on_lost is not None:
            lease.on_lost(reason)


def release_requested(lease: Lease) -> None:
    """Tell that somebody asks for the lock while its holder runs."""
    if lease.lock is None:
        return
    try:
        log(logging.INFO, "lock %r: its holder is asked to give it back", lease.name)
    finally:
        signals.send(signals.lock_asked, lease.name, lock=lease.lock())


def conflict(error: TaskLockAcquireError, action: str) -> None:
    """Tell that a call met a busy lock and did ``action``."""
    log(logging.INFO, "%s: %s", {"skip": "skipped", "raise": "refused"}.get(action, action), error)
    signals.send(signals.lock_conflict, error.name or "", error=error, action=action)


def unavailable(name: str, error: BackendUnavailable, action: str, noun: str = "lock") -> None:
    """Tell that the store could not be asked, and what is done about that."""
    log(logging.WARNING, "%s %r: %s; policy: %s", noun, name, error, action)
    signals.send(signals.store_unavailable, name, error=error, action=action)


def forced(name: str, removed: LockInfo, noun: str = "lock") -> None:
    """Tell that a lock was taken away from its holder, who goes on running."""
    log(
        logging.WARNING,
        "%s %r was released by force; it was held by %s for %.1f s",
        noun,
        name,
        removed.holder,
        removed.held_for,
    )
    signals.send(signals.lock_forced, name, info=removed)
