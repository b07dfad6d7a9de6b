"""Reading the index of locks as a stream, and the pause between two looks: nothing here holds more than a page."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from typing import TypeVar

from django_tasklock.backends.contract.locks import Backend
from django_tasklock.backends.contract.queries import Query
from django_tasklock.types import Record

_T = TypeVar("_T")

PAGE = 1000
"""Locks read by one request."""
BATCH = 2000
"""Marks that share one pause."""


def live_locks(backend: Backend) -> Iterator[list[Record]]:
    """Pages of the held locks, oldest first: every one that is held from the beginning to the end, once.

    Renewals do not move a lock in this order, and new ones come behind all others; releases move those up that
    were not read yet. So pages overlap by one: if that one has gone, it is read again from further up.
    ``TaskLockError`` where the store cannot list.
    """
    offset, newest = 0, -1
    met: set[str] = set()  # those of the millisecond ``newest``
    while True:
        page = backend.page(Query(order="age", descending=True, offset=offset, limit=PAGE))
        if offset and not _joins(page.records, newest, met):
            offset = max(0, offset - PAGE // 2)
            continue
        fresh = []
        for record in page.records:
            if record.at < newest or (record.at == newest and record.name in met):
                continue
            if record.at > newest:
                newest, met = record.at, set()
            met.add(record.name)
            fresh.append(record)
        yield fresh
        if page.next is None:
            return
        offset = max(0, page.next - 1)


def _joins(records: list[Record], newest: int, met: set[str]) -> bool:
    """Whether nothing can have been missed between what was read before and these."""
    if not records:
        return False
    first = records[0]
    return first.at < newest or (first.at == newest and first.name in met)


def of_kind(backend: Backend, query: Query) -> Iterator[list[Record]]:
    """Pages of ``query``, which nothing but this reading changes much: what lapsed, or has no expiry."""
    while True:
        page = backend.page(query)
        yield page.records
        if page.next is None:
            return
        query = query._replace(offset=page.next)


def second_look(marks: Iterable[_T], pause: float) -> Iterator[list[_T]]:
    """The marks in batches, each at least ``pause`` seconds after its last one was made."""
    batch: list[_T] = []
    for mark in marks:
        batch.append(mark)
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
