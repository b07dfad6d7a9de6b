"""Pages of the stored messages of all locks, each with the reason why it waits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from django_tasklock.exceptions import TaskLockError
from django_tasklock.operations.parked.reasons import Reasons

if TYPE_CHECKING:
    from django_tasklock.celery import ParkedInfo

MAX_PAGE_SIZE = 500
"""Messages per page; each of their locks costs a request to the rows."""


STATES = ("parked", "promoted", "dead")
"""The states of stored messages, as in ``ParkedInfo.state``."""


class ParkedQuery(NamedTuple):
    """A filter of stored messages; empty fields match everything."""

    state: str = ""
    """One of ``STATES``."""
    text: str = ""
    """A message's id or a lock's name; otherwise part of the name of a lock or task."""
    ids: tuple[str, ...] = ()
    """Only messages with these ids."""
    newest: bool = False
    """True: sort by the time of parking, the latest first."""
    after: int = 0
    """The ``ParkedInfo.id`` of the last message of the previous page."""
    limit: int = 50


@dataclass(frozen=True, slots=True)
class ParkedView:
    """A stored message."""

    info: ParkedInfo
    why: Sequence[str]
    """Why it waits: sentences in the active language."""


@dataclass(frozen=True, slots=True)
class ParkedPage:
    """A page of stored messages."""

    messages: Sequence[ParkedView]
    counts: Mapping[str, int]
    """The number of messages in each state, before any filter."""
    next: int | None
    """Pass it as ``after`` to read the next page; ``None``: this is the last page."""
    store_down: bool
    """True if the lock store was unavailable, so that the reasons are incomplete."""


def list_parked(query: ParkedQuery = ParkedQuery()) -> ParkedPage:  # noqa: B008  # frozen
    """Return a page of the stored messages: four statements, and a request to the store for each lock.

    Raises ``TaskLockError`` for an invalid page, and ``BackendUnavailable`` while the database is down.
    """
    from django_tasklock.celery.queue import rows as table
    from django_tasklock.celery.queue.operators import info_of

    if not 1 <= query.limit <= MAX_PAGE_SIZE or query.after < 0:
        raise TaskLockError(
            f"limit must be 1 to {MAX_PAGE_SIZE} and after 0 or more, not {query.limit} and {query.after}"
        )
    rows = table.list_page(query.state, query.text, query.ids, query.after, query.newest, query.limit + 1)
    found = [info_of(row) for row in rows[: query.limit]]
    reasons = Reasons(found)
    views = [ParkedView(info, reasons.explain(info)) for info in found]
    following = found[-1].id if len(rows) > query.limit else None
    return ParkedPage(views, table.count_states(), following, reasons.store_down)


def find_parked(task_id: str) -> ParkedView | None:
    """Return one stored message; ``None`` if there is none with this id. Raises as ``list_parked`` does."""
    return next(iter(list_parked(ParkedQuery(ids=(task_id,), limit=1)).messages), None)
