"""Pages of locks, with what the admin, REST and the commands show of each."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence

from django.core.exceptions import ImproperlyConfigured

from django_tasklock.backends import get_backend
from django_tasklock.backends.contract.queries import Page, Query
from django_tasklock.conf import expiring
from django_tasklock.exceptions import BackendUnavailable, TaskLockError
from django_tasklock.locks.holder import alive
from django_tasklock.locks.info import lock_info
from django_tasklock.operations.guarded_rows import row_ref
from django_tasklock.operations.values import LockCounts, LockPage, LockState, LockView
from django_tasklock.types import Record, monotonic

logger = logging.getLogger("django_tasklock")

MAX_PAGE_SIZE = 1000  # locks per page
MAX_DEAD_SEARCH = 5000  # locks, by expiry, among which those of ended processes are searched
SEARCH_SECONDS = 1.0  # seconds for a search; each step reads thousands, and the store serves others in between


def list_locks(query: Query = Query(), *, dead: bool = False) -> LockPage:  # noqa: B008  # frozen
    """Return a page of locks: index range reads in the store, and one query for the messages parked behind them.

    ``dead``: only live locks whose holder's process is known to have ended, by expiry, whatever the query says of state
    and order; the page's ``total`` is their number. They are searched among the five thousand that expire first, where
    they are because nobody renews them.

    With ``query.waiting``, a lock behind which messages are parked is included only if a caller waits for it as well.
    Raises ``TaskLockError`` for an invalid query, and ``BackendUnavailable``.
    """
    if not 0 <= query.limit <= MAX_PAGE_SIZE or query.offset < 0:
        raise TaskLockError(
            f"limit must be 0 to {MAX_PAGE_SIZE} and offset 0 or more, not {query.limit} and {query.offset}"
        )
    page = _read_dead(query) if dead else _read_page(query)
    orphaned = query.which == "orphaned" and not dead
    parked = count_parked_behind([record.name for record in page.records])
    views = [lock_view(record, parked.get(record.name, 0), orphaned) for record in page.records]
    orders = get_backend().orders
    in_groups = (
        not dead and orders is not None and query.which == "live" and query.order != "expiry" and page.total > orders
    )
    return LockPage(views, page.total, page.next, orders if in_groups else None)


def _read_page(query: Query) -> Page:
    """Return a page; for a search, read on for about a second until the page is full."""
    page: Page = get_backend().page(query)
    if not query.searches:
        return page
    deadline, offset = monotonic() + SEARCH_SECONDS, query.offset
    while page.next is not None and page.next > offset and len(page.records) < query.limit and monotonic() < deadline:
        offset = page.next
        more = get_backend().page(query._replace(offset=offset, limit=query.limit - len(page.records)))
        page = Page([*page.records, *more.records], more.total, more.next)
    return page


def _read_dead(query: Query) -> Page:
    """Return a page of the live locks whose holder's process has ended; ``total``: the number of all that match."""
    search = query._replace(which="live", order="expiry", descending=False, offset=0, limit=MAX_PAGE_SIZE)
    deadline, found = monotonic() + SEARCH_SECONDS, list[Record]()
    while True:
        page = get_backend().page(search)
        found += [record for record in page.records if is_alive(record) is False]
        if page.next is None or not search.offset < page.next < MAX_DEAD_SEARCH or monotonic() > deadline:
            break
        search = search._replace(offset=page.next)
    end = query.offset + query.limit
    return Page(found[query.offset : end], len(found), end if end < len(found) else None)


def is_alive(record: Record) -> bool | None:
    """Return whether the holder's process runs; ``None``: unknown, or no process holds the lock now."""
    return None if record.holder.kept else alive(record.holder)


def count_locks() -> LockCounts:
    """Return the number of locks of each kind. Raises ``BackendUnavailable``."""
    return LockCounts(*get_backend().counts(), dead=_read_dead(Query(limit=0)).total)


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
