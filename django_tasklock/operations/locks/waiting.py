"""The waiters of a lock."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from django_tasklock.backends import get_backend
from django_tasklock.backends.contract.stores import Waiting
from django_tasklock.locks.info import datetime_of
from django_tasklock.names import bare_name
from django_tasklock.texts import printable

MAX_WAITERS = 50
"""Waiters listed per lock; all of them are counted."""


@dataclass(frozen=True, slots=True)
class WaiterInfo:
    """A waiter for a lock or a permit."""

    holder: str
    """Host, process and task, as text."""
    task: str
    task_id: str
    since: datetime
    waited: float
    """Seconds."""
    present: bool
    """False if the waiter has not polled for some seconds: it is skipped, as its process may have been stopped."""


@dataclass(frozen=True, slots=True)
class WaitersPage:
    """The first waiters of a queue."""

    waiters: Sequence[WaiterInfo]
    total: int
    known: bool
    """False if waiters poll without a queue, as with the database: they are then unknown."""


def list_waiters(name: str, limit: int = MAX_WAITERS) -> WaitersPage:
    """Return the waiters of a lock, the longest waiting first, in one round trip.

    Raises ``BackendUnavailable``, and ``TaskLockError`` for an invalid name.
    """
    backend = get_backend()
    found = backend.waiters(bare_name(name), limit)
    return WaitersPage([_to_info(one) for one in found.waiting], found.total, backend.wakes)


def _to_info(one: Waiting) -> WaiterInfo:
    return WaiterInfo(
        holder=str(one.holder),
        task=printable(one.holder.task),
        task_id=printable(one.holder.task_id),
        since=datetime_of(one.since),
        waited=max(0, one.now - one.since) / 1000,
        present=one.present,
    )
