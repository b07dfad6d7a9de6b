"""Record who did what to which lock or limiter, and why: in our audit trail, and for users in Django's LogEntry too.

``operations.trail`` reads the entries.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import replace
from datetime import timedelta
from types import TracebackType
from typing import NamedTuple, Self

from django.apps import apps
from django.db import Error, router
from django.utils import timezone

from django_tasklock.exceptions import BackendUnavailable, TaskLockError
from django_tasklock.operations.values import Actor
from django_tasklock.texts import printable

logger = logging.getLogger("django_tasklock")

AT_ONCE, STEPS = 500, 20  # entries per DELETE statement, and statements per sweep
REASON = 1000
USER_ID = 64  # characters stored of a user's primary key
LIMIT_ACTIONS = ("reset_limit", "change_limit", "release_permit", "pause_limit", "resume_limit")
"""The actions on limiters; they tell a limiter's entries from those of a lock with the same name."""


class Deed(NamedTuple):
    """An action to record. ``action``: ``release``, ``ask``, ``sweep``, or one of ``LIMIT_ACTIONS``."""

    name: str
    action: str
    reason: str
    outcome: str


class Attempt:
    """An act in progress. Its entry is written at its end, and if it is interrupted after it may have had an effect.

    Enter it twice: if an exception from a signal handler interrupts the first ``__exit__``, the second does the rest.
    """

    def __init__(self, by: Actor, action: str, name: str, reason: str, of: str = "") -> None:
        self.by = by
        self.name = name
        self.of = of
        """The object of the act, where the name alone does not identify it."""
        self.outcome = ""
        """The outcome, once the act is done; empty: it had no effect."""
        self.so_far = ""
        """The part that is certainly done, before the rest begins."""
        self._action = action
        self._reason = reason
        self._written = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not self._written and (outcome := self.outcome or self._broken_off(error)):
            record_acts(self.by, [Deed(self.name, self._action, self._reason, outcome)])
        self._written = True

    def _broken_off(self, error: BaseException | None) -> str:
        """Return how far the act came; empty: it had no effect, because it was refused."""
        refused = isinstance(error, TaskLockError | Error) and not (
            isinstance(error, BackendUnavailable) and error.doubt
        )
        if error is None or (refused and not self.so_far):
            return ""
        return "; ".join(filter(None, [self.of, self.so_far, broken_off(error)]))


def broken_off(error: BaseException) -> str:
    """Return the outcome of an act that ``error`` has interrupted."""
    return f"broken off ({type(error).__name__}): look whether it was done"


def record_acts(by: Actor, deeds: Iterable[Deed]) -> None:
    """Record the actions of ``by``; they are done already, so if that fails the error and the actions are logged."""
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
        logger.exception("the audit trail could not be written; its entries are only in this log:")
        for deed in deeds:
            _say(logging.ERROR, by, deed)


def forget_old_acts(days: int) -> int:
    """Delete entries older than ``days``, at most 10,000 per call; return how many. Raises database errors."""
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
    """Insert ``deeds`` into the audit trail, all with the same actor and time."""
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
