"""Two looks at everything, with a pause in between; and the index of locks as a stream."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from typing import Protocol, TypeVar

from django_tasklock.backends.contract.locks import LockStore
from django_tasklock.backends.contract.queries import Query
from django_tasklock.operations.sweep.report import Finding, FindingOutcome, Suspect, SweepLog
from django_tasklock.types import Record

T = TypeVar("T")

PAGE_SIZE = 1000
"""Locks per request."""
BATCH_SIZE = 10_000
"""Suspects that share one pause, and one reading of the index."""


class Finder(Protocol[T]):
    """One class of what may be left behind: what to look for, and what to do about it."""

    def find(self) -> Iterator[Suspect[T]]:
        """Yield what looks left behind: the first look."""

    def confirm(self, batch: list[Suspect[T]]) -> Iterator[tuple[Suspect[T], Suspect[T] | None]]:
        """Yield each suspect with what the second look found; ``None``: nothing, or something else."""

    def act(self, suspect: Suspect[T]) -> Finding:
        """Put a confirmed suspect right, unless it has changed since, and return what came of it."""


def sweep_twice(finder: Finder[T], log: SweepLog, pause: float) -> None:
    """Act on each suspect that is still one at a second look, ``pause`` seconds after the first."""
    for batch in batches(finder.find(), BATCH_SIZE):
        sleep(pause)
        for suspect, confirmed in finder.confirm(batch):
            if confirmed is None:
                log.add(suspect.finding(FindingOutcome.CHANGED, "it was no longer so at the second check"))
            else:
                log.add(finder.act(confirmed))
        log.write_audit_entries()


def batches(items: Iterable[T], size: int) -> Iterator[list[T]]:
    """Yield the items in lists of this size; the last one may be shorter."""
    batch: list[T] = []
    for item in items:
        batch.append(item)
        if len(batch) == size:
            yield batch
            batch = []
    if batch:
        yield batch


def sleep(pause: float) -> None:
    """Sleep between the two looks, so that others can act."""
    time.sleep(pause)


def live_locks(backend: LockStore) -> Iterator[list[Record]]:
    """Yield pages of the held locks, the next to expire first; locks held from beginning to end are yielded once.

    A renewal moves a lock behind all others; that, and releases, move locks that were not read yet to lower offsets. So
    pages overlap by one lock: if it is missing or has moved, reading continues from a lower offset. Raises
    ``TaskLockError`` if the store cannot list.
    """
    offset = 0
    lease_ends_read: dict[str, float] = {}  # the end of each lease when last read
    while True:
        page = backend.page(Query(offset=offset, limit=PAGE_SIZE))
        if offset and not _overlaps(page.records, lease_ends_read):
            offset = max(0, offset - PAGE_SIZE // 2)
            continue
        unread = [record for record in page.records if record.name not in lease_ends_read]
        lease_ends_read |= {record.name: record.lease_ends for record in page.records}
        yield unread
        if page.next is None:
            return
        offset = max(0, page.next - 1)


def _overlaps(records: list[Record], lease_ends_read: dict[str, float]) -> bool:
    """Return whether no lock was missed before this page: its first lock was read before, and has not moved since."""
    return bool(records) and lease_ends_read.get(records[0].name) == records[0].lease_ends
