"""Who did what to which lock or limiter, and why: one trail for all doors, Django's LogEntry for what users did."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, Literal, NamedTuple

from django.apps import apps
from django.db import Error, router
from django.utils import timezone

from django_tasklock.operations.moments import with_zone
from django_tasklock.operations.values import Act, Actor
from django_tasklock.texts import printable

if TYPE_CHECKING:
    from django_tasklock.models import AuditEntry

logger = logging.getLogger("django_tasklock")

AT_ONCE, STEPS = 500, 20  # entries that one statement removes, and statements of one sweep
REASON = 1000
USER_ID = 64  # characters kept of a user's primary key
LIMIT_ACTIONS = ("reset_limit", "change_limit", "release_permit", "pause_limit", "resume_limit")
"""What is done to limiters: a lock may have the same name as one."""


class Deed(NamedTuple):
    """One thing that was done. ``action``: ``release``, ``ask``, ``sweep``, or of ``LIMIT_ACTIONS``; ``outcome``: for
    people."""

    name: str
    action: str
    reason: str
    outcome: str


def record_acts(by: Actor, deeds: Iterable[Deed]) -> None:
    """Write what ``by`` did. What was done stays done: if it cannot be written, that is logged, with the deed."""
    by = replace(by, name=printable(by.name))
    deeds = [
        deed._replace(reason=printable(" ".join(deed.reason.split()), REASON), outcome=printable(deed.outcome))
        for deed in deeds
    ]
    for deed in deeds:
        _say(logging.INFO, by, deed)
    try:
        keep(by, deeds)
        if by.user_id is not None and apps.is_installed("django.contrib.admin"):
            _log(by, deeds)
    except Error:
        logger.exception("the audit trail could not be written; all there is of it are these lines:")
        for deed in deeds:
            _say(logging.ERROR, by, deed)


def acts(name: str | None = None, limit: int = 50, of: Literal["lock", "limit", ""] = "") -> list[Act]:
    """Return what was done to a lock, or to any, the latest first. ``of``: only to locks, or only to limiters."""
    from django_tasklock.backends.database.names import key_of
    from django_tasklock.models import AuditEntry

    entries = AuditEntry._base_manager.using(router.db_for_read(AuditEntry))
    if name is not None:
        entries = entries.filter(key=key_of(name))
    if of:
        entries = (
            entries.filter(action__in=LIMIT_ACTIONS) if of == "limit" else entries.exclude(action__in=LIMIT_ACTIONS)
        )
    return [act_of(entry) for entry in entries.order_by("-at", "-id")[:limit]]


def recent_acts(name: str, of: Literal["lock", "limit"]) -> list[Act]:
    """Return the last that was done to a lock, or to a limiter; none, and that is logged, if it cannot be read."""
    try:
        return acts(name, limit=20, of=of)
    except Error as error:
        what = "limiter" if of == "limit" else of
        logger.warning("%s %r: its history could not be read: %s", what, name, error)
        return []


def act_of(entry: AuditEntry) -> Act:
    """Return what an entry says, with the whole name where the column has all of it."""
    from django_tasklock.backends.database.names import name_of

    name = name_of(entry.name, entry.key) or entry.name
    return Act(with_zone(entry.at), entry.actor, entry.action, entry.reason, entry.outcome, name, entry.pk)


def forget_old_acts(days: int) -> int:
    """Remove what is older than so many ``days``, a bounded number at a time; how many. Raises database errors."""
    from django_tasklock.models import AuditEntry

    entries = AuditEntry._base_manager.using(router.db_for_write(AuditEntry))
    old = entries.filter(at__lt=timezone.now() - timedelta(days=days)).order_by("at")
    removed = 0
    for _ in range(STEPS):
        keys = list(old.values_list("pk", flat=True)[:AT_ONCE])
        removed += entries.filter(pk__in=keys).delete()[0] if keys else 0
        if len(keys) < AT_ONCE:
            break
    return removed


def _say(level: int, by: Actor, deed: Deed) -> None:
    logger.log(level, "%s: %s %r: %s; reason: %r", by.name, deed.action, deed.name, deed.outcome, deed.reason)


def keep(by: Actor, deeds: list[Deed]) -> None:
    """Write ``deeds`` to the trail, those of one actor at one time."""
    from django_tasklock.backends.database.names import in_ascii, key_of
    from django_tasklock.models import AuditEntry

    now = timezone.now()
    user = "" if by.user_id is None else str(by.user_id)[:USER_ID]
    AuditEntry._base_manager.using(router.db_for_write(AuditEntry)).bulk_create(
        AuditEntry(
            at=now,
            actor=by.name,
            user_id=user,
            action=deed.action,
            key=key_of(deed.name),
            name=in_ascii(deed.name),
            reason=deed.reason,
            outcome=deed.outcome,
        )
        for deed in deeds
    )


def _log(by: Actor, deeds: list[Deed]) -> None:
    from django.contrib.admin.models import CHANGE, LogEntry

    from django_tasklock.models import Lock, RateLimit

    for deed in deeds:
        text = f"{deed.action}: {deed.outcome}" + (f" ({deed.reason})" if deed.reason else "")
        thing = RateLimit(key=deed.name) if deed.action in LIMIT_ACTIONS else Lock(key=deed.name)
        # A change, not a deletion: a deletion's entry loses its link.
        LogEntry.objects.log_actions(by.user_id, [thing], CHANGE, text, single_object=True)
