"""Operators' actions on parked messages: publish one now, requeue a dead one, or discard one."""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from django.utils.translation import gettext_lazy as _

from django_tasklock.operations.audit import audited
from django_tasklock.operations.values import Actor


class ParkedOutcome(enum.StrEnum):
    """The outcome of an action on a message."""

    PUBLISHED = "published"
    REQUEUED = "requeued"
    DISCARDED = "discarded"
    REFUSED = "refused"
    """Nothing was done, for the reason in ``ParkedResult.why``."""
    UNKNOWN = "unknown"
    """There is no such message: nothing was done."""


class ParkedResult(NamedTuple):
    """The result of an action on a message. It is true if something was done; its text is a sentence."""

    task_id: str
    outcome: ParkedOutcome
    why: str = ""
    """Why nothing was done; empty if something was."""

    def __bool__(self) -> bool:
        return self.outcome not in (ParkedOutcome.REFUSED, ParkedOutcome.UNKNOWN)

    def __str__(self) -> str:
        """Return what was done, in the active language."""
        return str(_SENTENCES[self.outcome] % {"id": self.task_id, "why": self.why})


_SENTENCES: Mapping[ParkedOutcome, Any] = {
    ParkedOutcome.PUBLISHED: _("Message %(id)s was published."),
    ParkedOutcome.REQUEUED: _("Message %(id)s waits for its lock again."),
    ParkedOutcome.DISCARDED: _("Message %(id)s was discarded."),
    ParkedOutcome.REFUSED: _("Message %(id)s: not done: %(why)s."),
    ParkedOutcome.UNKNOWN: _("Message %(id)s: not done: %(why)s."),
}


def requeue_parked(task_id: str, *, by: Actor, reason: str = "") -> ParkedResult:
    """Requeue a dead message, so that it waits for its lock again. Raises ``BackendUnavailable``."""
    from django_tasklock.celery.queue.operators import requeue

    return _act("requeue", task_id, by, reason, lambda: requeue(task_id), ParkedOutcome.REQUEUED)


def publish_parked(task_id: str, *, by: Actor, reason: str = "") -> ParkedResult:
    """Publish a parked message now if its lock is free and it is next.

    Workers do the same every few seconds; unlike them, this does not wait for an earlier message that was published and
    lost. Raises ``BackendUnavailable``.
    """
    from django_tasklock.celery.queue.operators import publish

    return _act("publish", task_id, by, reason, lambda: publish(task_id), ParkedOutcome.PUBLISHED)


def discard_parked(task_id: str, *, by: Actor, reason: str = "") -> ParkedResult:
    """Discard a parked or dead message: it ends as ``REVOKED`` without running. Raises ``BackendUnavailable``."""
    from django_tasklock.celery.queue.operators import discard

    why = f"{by.name}: {reason}" if reason else by.name
    return _act("discard", task_id, by, reason, lambda: discard(task_id, why), ParkedOutcome.DISCARDED)


def _act(
    action: str, task_id: str, by: Actor, reason: str, act: Callable[[], tuple[str, str] | None], done: ParkedOutcome
) -> ParkedResult:
    """Act and record it. ``act`` returns the lock's name and the obstacle; ``None`` if there is no such message."""
    with audited(by, action, "", reason, object_id=task_id) as attempt:
        found = act()
        if found is None:
            return ParkedResult(task_id, ParkedOutcome.UNKNOWN, "there is no such message")
        attempt.name, obstacle = found
        if obstacle:
            return ParkedResult(task_id, ParkedOutcome.REFUSED, obstacle)
        attempt.outcome = f"{task_id} was {done}"
        return ParkedResult(task_id, done)
