"""Reads the index of locks as a stream, and pauses between the two passes. In memory are one page, and names."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from typing import TypeVar

from django_tasklock.backends.contract.locks import LockStore
from django_tasklock.backends.contract.queries import Query
from django_tasklock.types import Record

_T = TypeVar("_T")

PAGE_SIZE = 1000
"""Locks per request."""
BATCH_SIZE = 2000
"""Suspects that share one pause."""


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


def read_pages(backend: LockStore, query: Query) -> Iterator[list[Record]]:
    """Yield pages of a kind of locks that hardly changes meanwhile: orphaned ones, or those without expiry."""
    while True:
        page = backend.page(query)
        yield page.records
        if page.next is None:
            return
        query = query._replace(offset=page.next)


def delayed_batches(suspects: Iterable[_T], pause: float) -> Iterator[list[_T]]:
    """Yield the suspects in batches, each at least ``pause`` seconds after its last suspect was found."""
    batch: list[_T] = []
    for suspect in suspects:
        batch.append(suspect)
        if len(batch) == BATCH_SIZE:
            sleep(pause)
            yield batch
            batch = []
    if batch:
        sleep(pause)
        yield batch


def sleep(pause: float) -> None:
    """Sleep between the two passes, so that others can act."""
    time.sleep(pause)
