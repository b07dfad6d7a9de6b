"""Record who did what to which lock or limiter, and why: in our audit trail, and for users in Django's LogEntry too.

``operations.trail`` reads the entries.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import NamedTuple

from django.apps import apps
from django.core.exceptions import ImproperlyConfigured
from django.db import Error, router
from django.utils import timezone

from django_tasklock.exceptions import BackendUnavailable, TaskLockError
from django_tasklock.operations.values import Actor
from django_tasklock.texts import printable

logger = logging.getLogger("django_tasklock")

BATCH_SIZE, MAX_BATCHES = 500, 20  # entries per DELETE statement, and statements per sweep
MAX_REASON_LENGTH = 1000
MAX_USER_ID_LENGTH = 64  # characters stored of a user's primary key
LIMIT_ACTIONS = ("reset_limit", "change_limit", "release_permit", "pause_limit", "resume_limit")
"""The actions on limiters; they tell a limiter's entries from those of a lock with the same name."""


class NewEntry(NamedTuple):
    """An action to record. ``action``: ``release``, ``ask``, ``sweep``, or one of ``LIMIT_ACTIONS``."""

    name: str
    action: str
    reason: str
    outcome: str


@dataclass
class Attempt:
    """An act in progress: what its block finds out about it."""

    name: str
    """The name of the lock or limiter."""
    outcome: str = ""
    """The outcome, once the act is done; empty: it had no effect."""
    partial_outcome: str = ""
    """The part that is certainly done, before the rest begins."""


@contextmanager
def audited(by: Actor, action: str, name: str, reason: str, object_id: str = "") -> Iterator[Attempt]:
    """Record what the block did; if it is interrupted, that it may have done it. What had no effect is not recorded.

    ``object_id``: the object of the act, where the name alone does not identify it.
    """
    attempt = Attempt(name)
    try:
        yield attempt
    except BaseException as error:
        refused = isinstance(error, TaskLockError | Error) and not (
            isinstance(error, BackendUnavailable) and error.doubt
        )
        if attempt.partial_outcome or not refused:
            broken_off = f"broken off ({type(error).__name__}): look whether it was done"
            parts = [object_id, attempt.partial_outcome, broken_off]
            record_acts(by, [NewEntry(attempt.name, action, reason, "; ".join(filter(None, parts)))])
        raise
    if attempt.outcome:
        record_acts(by, [NewEntry(attempt.name, action, reason, attempt.outcome)])


def record_acts(by: Actor, entries: Iterable[NewEntry]) -> None:
    """Record the actions of ``by``; they are done already, so if that fails the error and the actions are logged."""
    by = replace(by, name=printable(by.name))
    entries = [
        entry._replace(
            reason=printable(" ".join(entry.reason.split()), MAX_REASON_LENGTH), outcome=printable(entry.outcome)
        )
        for entry in entries
    ]
    for entry in entries:
        _write_log_line(logging.INFO, by, entry)
    try:
        store_entries(by, entries)
        if by.user_id is not None and apps.is_installed("django.contrib.admin"):
            _store_in_admin_log(by, entries)
    except (Error, ImproperlyConfigured):  # there may be no database at all
        logger.exception("the audit trail could not be written; its entries are only in this log:")
        for entry in entries:
            _write_log_line(logging.ERROR, by, entry)


def delete_old_entries(days: int) -> int:
    """Delete entries older than ``days``, at most 10,000 per call; return how many. Raises database errors."""
    from django_tasklock.models import AuditEntry

    entries = AuditEntry._base_manager.using(router.db_for_write(AuditEntry))
    old = entries.filter(at__lt=timezone.now() - timedelta(days=days)).order_by("at")
    removed = 0
    for _ in range(MAX_BATCHES):
        keys = list(old.values_list("pk", flat=True)[:BATCH_SIZE])
        removed += entries.filter(pk__in=keys).delete()[0] if keys else 0
        if len(keys) < BATCH_SIZE:
            break
    return removed


def _write_log_line(level: int, by: Actor, entry: NewEntry) -> None:
    logger.log(level, "%s: %s %r: %s; reason: %r", by.name, entry.action, entry.name, entry.outcome, entry.reason)


def store_entries(by: Actor, entries: list[NewEntry]) -> None:
    """Insert ``entries`` into the audit trail, all with the same actor and time."""
    from django_tasklock.backends.database.names import in_ascii, key_of
    from django_tasklock.models import AuditEntry

    now = timezone.now()
    user = "" if by.user_id is None else str(by.user_id)[:MAX_USER_ID_LENGTH]
    AuditEntry._base_manager.using(router.db_for_write(AuditEntry)).bulk_create(
        AuditEntry(
            at=now,
            actor=by.name,
            user_id=user,
            action=entry.action,
            key=key_of(entry.name),
            name=in_ascii(entry.name),
            reason=entry.reason,
            outcome=entry.outcome,
        )
        for entry in entries
    )


def _store_in_admin_log(by: Actor, entries: list[NewEntry]) -> None:
    from django.contrib.admin.models import CHANGE, LogEntry

    from django_tasklock.models import Lock, RateLimit

    for entry in entries:
        text = f"{entry.action}: {entry.outcome}" + (f" ({entry.reason})" if entry.reason else "")
        target = RateLimit(key=entry.name) if entry.action in LIMIT_ACTIONS else Lock(key=entry.name)
        # A change, not a deletion: a deletion's entry loses its link.
        LogEntry.objects.log_actions(by.user_id, [target], CHANGE, text, single_object=True)
