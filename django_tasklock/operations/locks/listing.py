"""Pages of locks, with what the admin, REST and the commands show of each."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence

from django.core.exceptions import ImproperlyConfigured

from django_tasklock.backends import get_backend
from django_tasklock.backends.contract.queries import Order, Page, Query
from django_tasklock.conf import expiring
from django_tasklock.exceptions import BackendUnavailable, TaskLockError
from django_tasklock.locks.holder import alive
from django_tasklock.locks.info import lock_info
from django_tasklock.operations.guarded_rows import row_ref
from django_tasklock.operations.values import LockCounts, LockPage, LockState, LockView
from django_tasklock.types import Record, monotonic

logger = logging.getLogger("django_tasklock")

MAX_PAGE_SIZE = 1000  # locks per page
MAX_READ = 10_000  # locks, the next to expire first, that are read to be sorted or searched for dead holders
SEARCH_SECONDS = 1.0  # seconds for that, and for a search; the store serves others between two pages

_SORT_KEYS: Mapping[Order, Callable[[Record], tuple[float, int]]] = {
    "expiry": lambda record: (record.lease_ends, record.fence),
    "age": lambda record: (-record.at, -record.fence),
    "left": lambda record: (record.until, record.fence),
}


def list_locks(query: Query = Query(), *, dead: bool = False) -> LockPage:  # noqa: B008  # frozen
    """Return a page of locks, and count the messages parked behind each.

    Of all locks of a state, the next to expire first, the store reads one page. Otherwise up to ten thousand locks, the
    next to expire, are read, and filtered and sorted here; ``LockPage.more`` says if there are more. ``dead``: only
    live locks whose holder's process is known to have ended, by expiry, whatever the query says of state and order.

    With ``query.waiting``, a lock behind which messages are parked is included only if a caller waits for it as well.
    Raises ``TaskLockError`` for an invalid query, and ``BackendUnavailable``.
    """
    if not 1 <= query.limit <= MAX_PAGE_SIZE or query.offset < 0:
        raise TaskLockError(
            f"limit must be 1 to {MAX_PAGE_SIZE} and offset 0 or more, not {query.limit} and {query.offset}"
        )
    if dead or query.searches or query.descending or query.order != "expiry":
        records, more = _read_dead(query) if dead else _read(query)
        if not dead:
            records.sort(key=_SORT_KEYS[query.order], reverse=query.descending)
        end = query.offset + query.limit
        page = Page(records[query.offset : end], len(records), end if end < len(records) else None)
    else:
        page, more = get_backend().page(query), False
    orphaned = query.which == "orphaned" and not dead
    parked = count_parked_behind([record.name for record in page.records])
    views = [lock_view(record, parked.get(record.name, 0), orphaned) for record in page.records]
    return LockPage(views, page.total, page.next, more)


def _read(query: Query) -> tuple[list[Record], bool]:
    """Return the locks that match, of the first ten thousand of that state, and whether there are more."""
    search = query._replace(order="expiry", descending=False, offset=0, limit=MAX_PAGE_SIZE)
    deadline, found = monotonic() + SEARCH_SECONDS, dict[str, Record]()  # a renewal moves a lock to a later page
    while True:
        page = get_backend().page(search)
        found |= {record.name: record for record in page.records}
        if page.next is None or not search.offset < page.next < MAX_READ or monotonic() > deadline:
            return list(found.values()), page.next is not None
        search = search._replace(offset=page.next)


def _read_dead(query: Query) -> tuple[list[Record], bool]:
    """Return the matching locks whose holder's process has ended; they expire first, because nobody renews them."""
    records, more = _read(query._replace(which="live"))
    return [record for record in records if is_alive(record) is False], more


def is_alive(record: Record) -> bool | None:
    """Return whether the holder's process runs; ``None``: unknown, or no process holds the lock now."""
    return None if record.holder.kept else alive(record.holder)


def count_locks() -> LockCounts:
    """Return the number of locks of each kind. Raises ``BackendUnavailable``."""
    return LockCounts(*get_backend().counts(), dead=len(_read_dead(Query())[0]))


def lock_view(record: Record, parked: int, orphaned: bool = False) -> LockView:
    """Return one lock as the admin, REST and the commands show it."""
    return LockView(
        info=lock_info(record),
        state=state_of(record, orphaned),
        lapsed_for=-(record.ttl or 0) / 1000 if orphaned else None,
        asked_for=max(0, record.now - record.asked) / 1000 if record.asked else None,
        row=row_ref(record),
        parked=parked,
        alive=None if orphaned else is_alive(record),
        instances=record.instances,
    )


def state_of(record: Record, orphaned: bool = False) -> LockState:
    """Return the state of a lock's lease."""
    if orphaned:
        return LockState.ORPHANED
    if record.ttl is None:
        return LockState.NO_EXPIRY
    return LockState.EXPIRING if record.ttl <= expiring() else LockState.LIVE


def count_parked_behind(names: Sequence[str]) -> Mapping[str, int]:
    """Return the number of messages parked behind each lock; nothing, and a logged warning, if the database fails."""
    from django_tasklock.celery.parking.listing import count_parked_by_name

    try:
        return count_parked_by_name(names)
    except (BackendUnavailable, ImproperlyConfigured) as error:
        logger.warning("the parked messages could not be read: %s", error)
        return {}
