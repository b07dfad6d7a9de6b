"""Read the audit trail: of one name, or a page at a time."""

from __future__ import annotations

import logging
from datetime import datetime
from typing import TYPE_CHECKING, Literal, NamedTuple

from django.core.exceptions import ImproperlyConfigured
from django.db import Error, router

from django_tasklock.db.fresh import fresh
from django_tasklock.exceptions import TaskLockError
from django_tasklock.operations.audit import LIMIT_ACTIONS
from django_tasklock.operations.datetimes import as_stored, with_zone
from django_tasklock.operations.values import Act

if TYPE_CHECKING:
    from django.db.models import QuerySet

    from django_tasklock.models import AuditEntry

logger = logging.getLogger("django_tasklock")

MAX_PAGE_SIZE = 1000
"""The most entries per page."""


class ActQuery(NamedTuple):
    """A filter of audit entries; empty fields and ``None`` match everything."""

    actor: str = ""
    """Part of the actor's name, case-insensitive."""
    action: str = ""
    """The whole code of an action, such as ``release``."""
    name: str = ""
    """The whole name of a lock or limiter, or part of it."""
    since: datetime | None = None
    before: datetime | None = None


class ActPage(NamedTuple):
    """A page of entries, the latest first."""

    acts: list[Act]
    next: int | None
    """Pass it as ``below`` to read the next page; ``None``: this is the last page."""


def acts(name: str | None = None, limit: int = 50, of: Literal["lock", "limit", ""] = "") -> list[Act]:
    """Return the actions on a lock, or on all names, the latest first. ``of``: only those on locks, or on limiters."""
    from django_tasklock.backends.database.names import key_of

    entries = _entries()
    if name is not None:
        entries = entries.filter(key=key_of(name))
    if of:
        entries = (
            entries.filter(action__in=LIMIT_ACTIONS) if of == "limit" else entries.exclude(action__in=LIMIT_ACTIONS)
        )
    return [_to_act(entry) for entry in entries.order_by("-at", "-id")[:limit]]


def recent_acts(name: str, of: Literal["lock", "limit"]) -> list[Act]:
    """Return the latest actions on a lock or limiter; an empty list, and a logged warning, if the database fails."""
    try:
        return acts(name, limit=20, of=of)
    except (Error, ImproperlyConfigured) as error:
        what = "limiter" if of == "limit" else of
        logger.warning("%s %r: its history could not be read: %s", what, name, error)
        return []


def list_acts(query: ActQuery = ActQuery(), *, below: int | None = None, limit: int = 100) -> ActPage:  # noqa: B008  # frozen
    """Return a page of the audit trail. ``below``: only entries with a lower ``Act.number``.

    Raises database errors, and ``TaskLockError`` for an invalid ``limit``.
    """
    if not 1 <= limit <= MAX_PAGE_SIZE:
        raise TaskLockError(f"limit must be 1 to {MAX_PAGE_SIZE}, not {limit}")
    entries = _matching_entries(query)
    if below is not None:
        entries = entries.filter(pk__lt=below)
    found = [_to_act(entry) for entry in entries.order_by("-pk")[: limit + 1]]
    more = len(found) > limit
    return ActPage(found[:limit], found[limit - 1].number if more else None)


def _matching_entries(query: ActQuery) -> QuerySet[AuditEntry]:
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

    return fresh(AuditEntry._base_manager.using(router.db_for_read(AuditEntry)))


def _to_act(entry: AuditEntry) -> Act:
    """Convert an entry, with the whole name if the column is long enough for it."""
    from django_tasklock.backends.database.names import name_of

    name = name_of(entry.name, entry.key) or entry.name
    return Act(with_zone(entry.at), entry.actor, entry.action, entry.reason, entry.outcome, name, entry.pk)
