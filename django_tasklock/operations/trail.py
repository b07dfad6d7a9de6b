"""The audit trail, read: what was done by whom, to one name, a page at a time, or all of it."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from datetime import datetime
from typing import TYPE_CHECKING, Literal, NamedTuple

from django.db import Error, router

from django_tasklock.exceptions import TaskLockError
from django_tasklock.operations.audit import LIMIT_ACTIONS
from django_tasklock.operations.moments import as_stored, with_zone
from django_tasklock.operations.values import Act

if TYPE_CHECKING:
    from django.db.models import QuerySet

    from django_tasklock.models import AuditEntry

logger = logging.getLogger("django_tasklock")

MOST = 1000
"""Entries of one page, and those that an export reads at a time."""


class ActQuery(NamedTuple):
    """Which entries of the audit trail are wanted; what is empty, or ``None``, does not narrow."""

    actor: str = ""
    """A part of the actor's name, in either case."""
    action: str = ""
    """``release``, say: its whole code."""
    name: str = ""
    """The whole name of a lock or limiter, or a part of it."""
    since: datetime | None = None
    before: datetime | None = None


class ActPage(NamedTuple):
    """Some entries, the latest first."""

    acts: list[Act]
    next: int | None
    """Ask for those ``below`` this to go on; ``None``: there are no more."""


def acts(name: str | None = None, limit: int = 50, of: Literal["lock", "limit", ""] = "") -> list[Act]:
    """Return what was done to a lock, or to any, the latest first. ``of``: only to locks, or only to limiters."""
    from django_tasklock.backends.database.names import key_of

    entries = _entries()
    if name is not None:
        entries = entries.filter(key=key_of(name))
    if of:
        entries = (
            entries.filter(action__in=LIMIT_ACTIONS) if of == "limit" else entries.exclude(action__in=LIMIT_ACTIONS)
        )
    return [_act(entry) for entry in entries.order_by("-at", "-id")[:limit]]


def recent_acts(name: str, of: Literal["lock", "limit"]) -> list[Act]:
    """Return the last that was done to a lock, or to a limiter; none, and that is logged, if it cannot be read."""
    try:
        return acts(name, limit=20, of=of)
    except Error as error:
        what = "limiter" if of == "limit" else of
        logger.warning("%s %r: its history could not be read: %s", what, name, error)
        return []


def list_acts(query: ActQuery = ActQuery(), *, below: int | None = None, limit: int = 100) -> ActPage:  # noqa: B008  # frozen
    """Return a page of the audit trail. ``below``: only entries with a lower ``Act.number``.

    Raises database errors, and ``TaskLockError`` for a page that cannot be.
    """
    if not 1 <= limit <= MOST:
        raise TaskLockError(f"limit must be 1 to {MOST}, not {limit}")
    entries = _wanted(query)
    if below is not None:
        entries = entries.filter(pk__lt=below)
    found = [_act(entry) for entry in entries.order_by("-pk")[: limit + 1]]
    more = len(found) > limit
    return ActPage(found[:limit], found[limit - 1].number if more else None)


def each_act(query: ActQuery = ActQuery()) -> Iterator[Act]:  # noqa: B008  # frozen
    """Yield all entries that are wanted, the latest first; no more than a page of them is held at a time.

    Each page is a statement of its own: what is written meanwhile is left out, and nothing is locked.
    """
    page = list_acts(query, limit=MOST)
    while True:
        yield from page.acts
        if page.next is None:
            return
        page = list_acts(query, below=page.next, limit=MOST)


def _wanted(query: ActQuery) -> QuerySet[AuditEntry]:
    from django_tasklock.backends.database.names import in_ascii, key_of

    entries = _entries()
    if query.actor:
        entries = entries.filter(actor__icontains=query.actor)
    if query.action:
        entries = entries.filter(action=query.action)
    if query.since is not None:
        entries = entries.filter(at__gte=as_stored(query.since))
    if query.before is not None:
        entries = entries.filter(at__lt=as_stored(query.before))
    if query.name:
        exact = entries.filter(key=key_of(query.name))  # by an index
        entries = exact if exact.exists() else entries.filter(name__icontains=in_ascii(query.name))
    return entries


def _entries() -> QuerySet[AuditEntry]:
    from django_tasklock.models import AuditEntry

    return AuditEntry._base_manager.using(router.db_for_read(AuditEntry))


def _act(entry: AuditEntry) -> Act:
    """Return what an entry says, with the whole name where the column has all of it."""
    from django_tasklock.backends.database.names import name_of

    name = name_of(entry.name, entry.key) or entry.name
    return Act(with_zone(entry.at), entry.actor, entry.action, entry.reason, entry.outcome, name, entry.pk)
