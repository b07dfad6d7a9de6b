"""Lists of locks: read in order of expiry from a store's index; filtered, sorted and continued here, for all stores."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Final, Literal, NamedTuple

from django_tasklock.types import Record

if TYPE_CHECKING:
    from django_tasklock.backends.contract.stores import LockStore

Which = Literal["live", "expiring", "no_expiry", "orphaned"]
"""Locks by the state of their lease: ``live`` (includes the next two), ``expiring`` (soon, unless renewed),
``no_expiry``, ``orphaned`` (the lease has run out: the lock is free and still in the index)."""
Order = Literal["expiry", "age", "left"]
"""By time left of the lease (``expiry``), by time held (``age``), by time left of the timeout (``left``)."""

MOST = 10_000
"""Locks, the next to expire first, that are read to be filtered or sorted."""
PART = 2000
"""Locks that are read in one request: a Redis serves no other client meanwhile, for some 10 ms."""
_SORT_KEYS: Final[dict[str, Callable[[Record], tuple[int, int]]]] = {
    "age": lambda record: (-record.at, -record.fence),
    "left": lambda record: (record.until, record.fence),
}


class Query(NamedTuple):
    """Which locks to list, and in which order: live ones in any order, the others by expiry.

    The filters are ``text`` (contained in the name, ignoring case), ``task`` (the full task name) and ``waiting`` (has
    waiters).
    """

    which: Which = "live"
    order: Order = "expiry"
    descending: bool = False
    text: str = ""
    task: str = ""
    waiting: bool = False
    offset: int = 0
    limit: int = 100

    @property
    def searches(self) -> bool:
        """Whether the query has a filter besides the state."""
        return bool(self.text or self.task or self.waiting)

    def matches(self, record: Record) -> bool:
        """Return whether a lock passes the filters."""
        return (
            self.text.lower() in record.name.lower()
            and self.task in ("", record.holder.task)
            and (record.waiting > 0 or not self.waiting)
        )


class Page(NamedTuple):
    """One page of locks."""

    records: list[Record]
    total: int
    """The number of locks that match."""
    next: int | None = None
    """The offset of the next page; ``None``: there is none."""
    more: bool = False
    """Whether there are more: only the ten thousand that expire first were read."""


class Counts(NamedTuple):
    """The number of locks in each state; ``live`` includes ``expiring`` and ``no_expiry``."""

    live: int
    expiring: int
    no_expiry: int
    orphaned: int


def page(store: LockStore, query: Query, keep: Callable[[Record], bool] | None = None) -> Page:
    """Return a page of locks; ``keep``: a filter besides those of the query.

    Of all locks of a state, the next to expire first, the store reads that page alone. Otherwise up to ten thousand
    locks, the next to expire, are read, and filtered and sorted here; ``Page.more`` says if there are more. Raises what
    ``LockStore.records`` does.
    """
    end = query.offset + query.limit
    order = query.order if query.which == "live" else "expiry"
    if keep is None and not query.searches and order == "expiry" and not query.descending:
        found = store.records(query.which, offset=query.offset, limit=query.limit)
        total: int = getattr(store.counts(), query.which)
        return Page(found, total, end if end < total else None)
    records, more = read(store, query.which)
    found = [record for record in records if query.matches(record) and (keep is None or keep(record))]
    if order == "expiry":
        found = found[::-1] if query.descending else found
    else:
        found.sort(key=_SORT_KEYS[order], reverse=query.descending)
    return Page(found[query.offset : end], len(found), end if end < len(found) else None, more)


def read(store: LockStore, which: Which = "live") -> tuple[list[Record], bool]:
    """Return the first ten thousand locks of a state, the next to expire first, and whether there are more."""
    found: list[Record] = []
    for part in each(store, which):
        found += part
        if len(found) > MOST:
            break
    return found[:MOST], len(found) > MOST


def each(store: LockStore, which: Which = "live") -> Iterator[list[Record]]:
    """Yield all locks of a state in parts, the next to expire first; what stays from beginning to end comes once.

    A renewal moves a lock behind all others; that, and releases, move locks that were not read yet to lower offsets. So
    parts overlap by one lock: if it is missing or has moved, reading continues from a lower offset.
    """
    offset = 0
    ends: dict[str, float] = {}  # of each lease when it was last read
    while True:
        part = store.records(which, offset=offset, limit=PART)
        if offset and not (part and _stays(part[0], ends.get(part[0].name))):
            offset = max(0, offset - PART // 2)
            continue
        unread = [record for record in part if record.name not in ends]
        ends |= {record.name: record.lease_ends for record in part}
        yield unread
        if len(part) < PART:
            return
        offset += PART - 1


def _stays(record: Record, before: float | None) -> bool:
    """Return whether a lease still ends when it did before; a majority reports that to some milliseconds."""
    return before is not None and (record.lease_ends == before or abs(record.lease_ends - before) < 100)
