"""The waiters of a lock, and what its holder waits for in turn."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Literal

from django_tasklock.backends import get_backend
from django_tasklock.backends.contract.queries import Query, Waiting
from django_tasklock.locks.info import datetime_of, lock_info
from django_tasklock.names import bare_name
from django_tasklock.operations.optional import if_supported
from django_tasklock.texts import printable
from django_tasklock.types import Holder, monotonic

MAX_WAITERS = 50
"""Waiters listed per lock; all of them are counted."""
MAX_QUEUES = 50
"""Locks with waiters, and limiters, whose queues are searched."""
SEARCH_SECONDS = 0.3
"""Seconds spent on finding locks with waiters."""


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


@dataclass(frozen=True, slots=True)
class Awaited:
    """A lock, permit or rate that the holder of a lock waits for."""

    kind: Literal["lock", "permit", "rate"]
    name: str
    since: datetime
    waited: float
    """Seconds."""
    held_by: str
    """The holder; empty if it is unknown or if several hold a permit."""
    sure: bool
    """True if the same task waits; False if the same process waits, possibly in another thread."""


def list_waiters(name: str, limit: int = MAX_WAITERS) -> WaitersPage:
    """Return the waiters of a lock, the longest waiting first, in one round trip.

    Raises ``BackendUnavailable``, and ``TaskLockError`` for an invalid name.
    """
    backend = get_backend()
    found = backend.waiters(bare_name(name), limit)
    return WaitersPage([_to_info(one) for one in found.waiting], found.total, backend.wakes)


def find_awaited(name: str) -> list[Awaited]:
    """Return what the holder of a lock waits for: other locks, permits of concurrency limiters, a rate.

    The first two are found by the holder's entries in queues, so nothing is written for them. Searched are the queues
    of the first fifty locks with waiters and of as many limiters, for a third of a second. A caller that sleeps for a
    second or more until a rate lets it proceed records that in the locks it holds. Where waiters poll, nothing is
    known.

    Raises ``BackendUnavailable``, and ``TaskLockError`` for an invalid name.
    """
    backend = get_backend()
    bare = bare_name(name)
    record = backend.get(bare)
    if record is None or not record.holder.boot or not backend.wakes:
        return []
    holder = record.holder
    found = [
        _build_awaited("lock", other, holder, one)
        for other in _locks_with_waiters(bare)
        for one in backend.waiters(other, MAX_WAITERS).waiting
        if _is_same_holder(holder, one.holder)
    ]
    found += [
        _build_awaited("permit", other, holder, one)
        for other in _limiter_names()
        for one in backend.permits.waiters(other, MAX_WAITERS).waiting
        if _is_same_holder(holder, one.holder)
    ]
    recorded = backend.recorded_wait(bare, record.token)
    if recorded is not None:
        waited = max(0, recorded.now - recorded.since) / 1000
        found.append(Awaited("rate", printable(recorded.what), datetime_of(recorded.since), waited, "", sure=True))
    return sorted(found, key=lambda one: (not one.sure, one.since))


def _locks_with_waiters(name: str) -> Iterator[str]:
    """Yield the names of other locks that have waiters."""
    query, deadline, found = Query(waiting=True, limit=MAX_QUEUES), monotonic() + SEARCH_SECONDS, 0
    while True:
        page = if_supported(partial(get_backend().page, query))
        if page is None:
            return
        for record in page.records:
            found += 1
            if record.name != name:
                yield record.name
        if page.next is None or page.next <= query.offset or found >= MAX_QUEUES or monotonic() > deadline:
            return
        query = query._replace(offset=page.next)


def _limiter_names() -> list[str]:
    return if_supported(lambda: get_backend().permits.names(MAX_QUEUES)) or []


def _is_same_holder(holder: Holder, waiter: Holder) -> bool:
    """Return whether both are the same process, and the same task if both name one."""
    if holder.boot != waiter.boot or holder.pid != waiter.pid:
        return False
    return not (holder.task_id and waiter.task_id) or holder.task_id == waiter.task_id


def _build_awaited(kind: Literal["lock", "permit"], name: str, holder: Holder, one: Waiting) -> Awaited:
    held = get_backend().get(name) if kind == "lock" else None
    info = _to_info(one)
    return Awaited(
        kind=kind,
        name=printable(name),
        since=info.since,
        waited=info.waited,
        held_by="" if held is None else lock_info(held).holder,
        sure=bool(holder.task_id) and holder.task_id == one.holder.task_id,
    )


def _to_info(one: Waiting) -> WaiterInfo:
    return WaiterInfo(
        holder=str(one.holder),
        task=printable(one.holder.task),
        task_id=printable(one.holder.task_id),
        since=datetime_of(one.since),
        waited=max(0, one.now - one.since) / 1000,
        present=one.present,
    )
