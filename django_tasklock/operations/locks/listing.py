"""Pages of locks, with what the admin, REST and the commands show of each."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence

from django.core.exceptions import ImproperlyConfigured

from django_tasklock.backends import get_backend
from django_tasklock.backends.contract import lists
from django_tasklock.backends.contract.lists import Query
from django_tasklock.conf import expiring
from django_tasklock.exceptions import BackendUnavailable, TaskLockError
from django_tasklock.locks.holder import alive
from django_tasklock.locks.info import lock_info
from django_tasklock.operations.guarded_rows import row_ref
from django_tasklock.operations.values import LockCounts, LockPage, LockState, LockView
from django_tasklock.types import Record

logger = logging.getLogger("django_tasklock")

MAX_PAGE_SIZE = 1000  # locks per page


def list_locks(query: Query = Query(), *, dead: bool = False) -> LockPage:  # noqa: B008  # frozen
    """Return a page of locks, and count the messages parked behind each.

    All locks of a state are listed by expiry. For another order, or a filter, ten thousand locks at most are read, the
    next to expire; ``LockPage.more`` says if there are more. ``dead``: only live locks whose holder's process is known
    to have ended, by expiry, whatever the query says of state and order.

    With ``query.waiting``, a lock behind which messages are parked is included only if a caller waits for it as well.
    Raises ``TaskLockError`` for an invalid query, and ``BackendUnavailable``.
    """
    if not 1 <= query.limit <= MAX_PAGE_SIZE or query.offset < 0:
        raise TaskLockError(
            f"limit must be 1 to {MAX_PAGE_SIZE} and offset 0 or more, not {query.limit} and {query.offset}"
        )
    if dead:
        query = query._replace(which="live", order="expiry", descending=False)
    page = lists.page(get_backend(), query, is_dead if dead else None)
    orphaned = query.which == "orphaned"
    parked = count_parked_behind([record.name for record in page.records])
    views = [lock_view(record, parked.get(record.name, 0), orphaned) for record in page.records]
    return LockPage(views, page.total, page.next, page.more)


def scan_locks() -> int:
    """Take up the locks that other code has set by itself, below our prefix, so that lists and sweeps know them; return
    how many were new.

    It walks through all keys of the Redis database, a thousand at a time. Raises ``TaskLockError`` for another store,
    and ``BackendUnavailable``.
    """
    return get_backend().scan()


def is_dead(record: Record) -> bool:
    """Return whether the holder's process has ended; such locks expire first, because nobody renews them."""
    return alive(record.holder) is False


def count_locks() -> LockCounts:
    """Return the number of locks of each kind. Raises ``BackendUnavailable``."""
    live, _ = lists.read(get_backend())
    return LockCounts(*get_backend().counts(), dead=sum(map(is_dead, live)))


def lock_view(record: Record, parked: int, orphaned: bool = False) -> LockView:
    """Return one lock as the admin, REST and the commands show it."""
    return LockView(
        info=lock_info(record),
        state=state_of(record, orphaned),
        lapsed_for=-(record.ttl or 0) / 1000 if orphaned else None,
        asked_for=max(0, record.now - record.asked) / 1000 if record.asked else None,
        row=row_ref(record),
        parked=parked,
        alive=None if orphaned else alive(record.holder),
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
    from django_tasklock.celery.queue import rows

    try:
        return rows.count_by_name(names)
    except (BackendUnavailable, ImproperlyConfigured) as error:
        logger.warning("the parked messages could not be read: %s", error)
        return {}
