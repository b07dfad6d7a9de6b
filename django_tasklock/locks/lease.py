"""A lease: one acquisition of a lock, with its deadline, its loss and the requests to release it.

A forked child has no leases: it neither renews nor releases those of its parent.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from django_tasklock.conf import UNTIL_RELEASED
from django_tasklock.exceptions import TaskLockAcquireError
from django_tasklock.locks.taken import Taker
from django_tasklock.process import check_process
from django_tasklock.types import Grant, Record, monotonic

if TYPE_CHECKING:
    from django_tasklock.backends.contract.stores import LeaseStore
    from django_tasklock.context import Named

GONE = "the store no longer knows it: it expired, was released by force, or the store was flushed"
"""The reason of a loss that the store reported."""
CHECK_INTERVAL = 1.0
"""Seconds between two questions to the store whether a lease is still valid."""
ROUNDING = 0.001
"""Seconds by which a store may count a lease too short: its clock has whole milliseconds."""

generation = 0
"""The number of forks and resets of this process: a lease of an earlier generation belongs to another process."""


class Lease:
    """One acquisition of a lock. Points in time are seconds on the monotonic clock of this process."""

    fence = 0
    count = 1
    """How often its taker has acquired it, by re-entry. The last of as many releases releases it."""
    deadline = 0.0
    """Until when the lease is certain, counted from before the request that the store answered."""
    until = 0.0
    """The end of the timeout."""
    renew_at = 0.0
    """When the next renewal is due."""
    renew_slack = 0.0
    """Seconds by which the renewal may be early, to share a request with others."""
    asked = False
    """Whether an operator or another process has asked for its release."""
    granted_at = 0.0
    """When the grant arrived, which is counted then; 0: it was not counted."""
    counted_as = ""
    """The kind that it is counted as, ``video:{id}``."""
    on_busy = ""
    """The action that a conflict is counted as; empty: it is not counted."""
    checked_at = 0.0
    """When the store was last asked whether the lease is still valid."""
    released = False
    """Whether it was released or given up. A loss of it is not reported any more."""
    without_lock = False
    """Whether its body runs without the lock, because the store is down and the policy is ``run``."""
    acquired_in: tuple[str, int] = ("", 0)
    """The file and line that acquired it."""
    until_released = False
    """Whether it has no timeout, so that the process keeps it even if nothing else refers to it any more."""
    _lost = ""

    def __init__(
        self,
        backend: LeaseStore,
        name: str,
        lease_ms: int | None,
        lock: weakref.ref[Named] | None = None,
        on_lost: Callable[[str], object] | None = None,
    ) -> None:
        self.backend = backend
        self.name = name
        self.token = os.urandom(16).hex()
        self.lease_ms = lease_ms
        """How long its key lives without a renewal; ``None``: it is not renewed."""
        self.lock = lock
        """The lock object. Weak, so that a dropped lock object is freed at once, without the garbage collector."""
        self.on_lost = on_lost
        """The callback for its loss."""
        self.listeners: list[Callable[[], None]] = []
        """Callbacks for its loss and for a request to release it. They end sleeps inside the block."""
        self.generation = generation
        self.taker = Taker()
        """The thread or asyncio task that has taken it."""

    def granted(self, grant: Grant, sent: float, hold: int) -> None:
        """Store the grant that answered a request sent at ``sent``. ``hold``: the timeout in milliseconds."""
        self.fence = grant.fence
        self.until_released = hold == UNTIL_RELEASED
        self.until = sent + hold / 1000
        self.renewed(sent, grant.ttl)

    def renewed(self, sent: float, ttl: int) -> None:
        """Store that the key lives for at least ``ttl`` milliseconds from ``sent``."""
        self.deadline = sent + ttl / 1000 - ROUNDING
        self.renew_at = sent + ttl / 3000
        self.renew_slack = ttl / 10_000

    @property
    def lost(self) -> str:
        """The reason why the lease is certainly gone; empty while it may be valid."""
        if not self._lost and not self.without_lock and monotonic() >= self.deadline:
            return "its timeout is over" if self.reaches_timeout else "it could not be renewed in time"
        return self._lost

    def mark_lost(self, reason: str) -> bool:
        """Record the loss. Return True for the first call, which reports it."""
        if self._lost or self.released:
            return False
        self._lost = reason
        self._notify()
        return True

    def mark_asked(self) -> bool:
        """Record a request to release it. Return True for the first call, which reports it."""
        if self.asked or self.released:
            return False
        self.asked = True
        self._notify()
        return True

    def _notify(self) -> None:
        for listener in list(self.listeners):
            listener()

    def should_check_store(self) -> bool:
        """Tell whether to ask the store now, which knows of a loss or a request before the next renewal.

        At most once in ``CHECK_INTERVAL``.
        """
        now = monotonic()
        if self.without_lock or self.lost or self.asked or now < self.checked_at + CHECK_INTERVAL:
            return False
        self.checked_at = now
        return True

    @property
    def dropped(self) -> bool:
        """Whether the object that it was acquired through was collected."""
        return self.lock is not None and self.lock() is None

    @property
    def reaches_timeout(self) -> bool:
        """Whether the lease lasts until the timeout, so that no renewal is left to do."""
        return self.deadline >= self.until - 2 * ROUNDING

    @property
    def inherited(self) -> bool:
        """Whether it belongs to the process that this one was forked from."""
        check_process()
        return self.generation != generation


class Refusal(NamedTuple):
    """Why a lock was not acquired, and the record of its holder, where that could be read.

    ``error.__cause__`` is a ``BackendUnavailable`` where the store is down and the policy is ``"skip"``.
    """

    error: TaskLockAcquireError
    record: Record | None = None


def forget() -> None:
    """Treat every lease of this process as one of another process."""
    global generation
    generation += 1


def after_fork() -> None:
    """Treat the parent's leases as those of another process."""
    forget()
