"""Parked messages over all locks, a page at a time, each with why it waits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from django_tasklock.exceptions import TaskLockError
from django_tasklock.operations.parked.reasons import Reasons

if TYPE_CHECKING:
    from django_tasklock.celery import ParkedInfo

MOST = 500
"""Messages of one page: of each lock that they wait for the store is asked once."""


STATES = ("parked", "promoted", "running", "dead", "ended", "superseded")
"""The states of kept messages, as ``ParkedInfo.state`` has them."""


class ParkedQuery(NamedTuple):
    """Which kept messages are wanted; what is empty does not narrow."""

    state: str = ""
    """One of ``STATES``."""
    text: str = ""
    """A message's id, or the name of a lock; or else a part of the name of a lock or of a task."""
    ids: tuple[str, ...] = ()
    """Only messages with these ids."""
    newest: bool = False
    """True: whoever was parked last comes first."""
    after: int = 0
    """The ``ParkedInfo.id`` to go on behind."""
    limit: int = 50


@dataclass(frozen=True, slots=True)
class ParkedView:
    """One kept message."""

    info: ParkedInfo
    why: Sequence[str]
    """What it waits for, in sentences, in the language of whoever reads them."""


@dataclass(frozen=True, slots=True)
class ParkedPage:
    """Some kept messages."""

    messages: Sequence[ParkedView]
    counts: Mapping[str, int]
    """How many there are in each state, before any filter."""
    next: int | None
    """Ask for those ``after`` this to go on; ``None``: there are no more."""
    store_down: bool
    """True if the lock store could not be asked, so that it is not known what they wait for."""


def list_parked(query: ParkedQuery = ParkedQuery()) -> ParkedPage:  # noqa: B008  # frozen
    """Return a page of the kept messages: four statements, and a question to the store for each lock.

    Raises ``TaskLockError`` for a page that cannot be, ``BackendUnavailable`` while the database is down.
    """
    from django_tasklock.celery.parking import store
    from django_tasklock.celery.parking.listing import info_of

    if not 1 <= query.limit <= MOST or query.after < 0:
        raise TaskLockError(f"limit must be 1 to {MOST} and after 0 or more, not {query.limit} and {query.after}")
    rows = store.list_page(query.state, query.text, query.ids, query.after, query.newest, query.limit + 1)
    found = [info_of(row) for row in rows[: query.limit]]
    reasons = Reasons(found)
    views = [ParkedView(info, reasons.of(info)) for info in found]
    following = found[-1].id if len(rows) > query.limit else None
    return ParkedPage(views, store.count_states(), following, reasons.store_down)


def find_parked(task_id: str) -> ParkedView | None:
    """Return one kept message; ``None``: there is no such message. Raises as ``list_parked`` does."""
    return next(iter(list_parked(ParkedQuery(ids=(task_id,), limit=1)).messages), None)
