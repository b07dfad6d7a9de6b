"""Reading the index of locks as a stream, and the pause between two looks. No more than a page is held, but names."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from typing import TypeVar

from django_tasklock.backends.contract.locks import LockStore
from django_tasklock.backends.contract.queries import Query
from django_tasklock.types import Record

_T = TypeVar("_T")

PAGE = 1000
"""Locks read by one request."""
BATCH = 2000
"""Suspects that share one pause."""


def live_locks(backend: LockStore) -> Iterator[list[Record]]:
    """Yield pages of the held locks, the next to expire first: every one that is held from the beginning to the end,
    once.

    A renewal puts a lock behind all others; that, and releases, move those up that were not read yet. So pages overlap
    by one: if that one has gone, or moved, it is read again from further up. ``TaskLockError`` where the store cannot
    list.
    """
    offset = 0
    met: dict[str, float] = {}  # when each lease ended as it was read last
    while True:
        page = backend.page(Query(offset=offset, limit=PAGE))
        if offset and not _joins(page.records, met):
            offset = max(0, offset - PAGE // 2)
            continue
        fresh = [record for record in page.records if record.name not in met]
        met |= {record.name: record.lease_ends for record in page.records}
        yield fresh
        if page.next is None:
            return
        offset = max(0, page.next - 1)


def _joins(records: list[Record], met: dict[str, float]) -> bool:
    """Return whether nothing can have been missed between what was read before and these: the first stands where it
    stood.
    """
    return bool(records) and met.get(records[0].name) == records[0].lease_ends


def of_kind(backend: LockStore, query: Query) -> Iterator[list[Record]]:
    """Yield pages of ``query``, which nothing but this reading changes much: what lapsed, or has no expiry."""
    while True:
        page = backend.page(query)
        yield page.records
        if page.next is None:
            return
        query = query._replace(offset=page.next)


def second_look(suspects: Iterable[_T], pause: float) -> Iterator[list[_T]]:
    """Yield the suspects in batches, each at least ``pause`` seconds after its last one was made."""
    batch: list[_T] = []
    for suspect in suspects:
        batch.append(suspect)
        if len(batch) == BATCH:
            wait(pause)
            yield batch
            batch = []
    if batch:
        wait(pause)
        yield batch


def wait(pause: float) -> None:
    """Let others act between the two looks."""
    time.sleep(pause)
