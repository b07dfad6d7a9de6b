"""What people see of parked messages, and what operators do with them.

Models are imported when a function is called: the package imports this module, and must not touch them.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from celery import current_app

from django_tasklock.backends import get_backend
from django_tasklock.conf import get_settings
from django_tasklock.names import strip_prefix

if TYPE_CHECKING:
    from django_tasklock.models import ParkedMessage


@dataclass(frozen=True, slots=True)
class ParkedInfo:
    """A message that waits for its lock outside the broker. Times are the database's."""

    name: str
    task: str
    task_id: str
    state: str
    """One of ``parked``, ``promoted`` (on its way) and ``dead`` (it cannot be read, or no worker takes it: an operator
    decides)."""
    mode: str
    """The ``on_conflict`` that parked it: ``queue`` or ``coalesce``; ``replaced``: a newer message replaced it, and its
    result is being stored."""
    parked_at: datetime
    waited: float
    """Seconds since it was parked."""
    problem: str = ""
    """The reason why it is dead, or why it could not be read the last time."""
    number: int = 0
    """The sequence number: of one lock's messages the one with the lowest is the first."""
    id: int = 0
    """The number of its row, greater for messages that were parked later."""
    changed: float = 0.0
    """Seconds since it entered this state."""
    attempts: int = 0
    """How often in a row it was put back without a worker taking it, or could not be read."""


def parked_messages(
    name: str | None = None, *, state: str | None = None, limit: int = 1000, offset: int = 0
) -> list[ParkedInfo]:
    """Return the messages of one lock or of all, in order of publication. Raises ``BackendUnavailable``."""
    from django_tasklock.celery.queue import rows

    return [info_of(row) for row in rows.list_rows(_without_prefix(name), limit, offset, state)]


def info_of(row: ParkedMessage) -> ParkedInfo:
    """Return the information about a row."""
    from django_tasklock.celery.queue.envelope import full_name

    return ParkedInfo(
        name=full_name(row),
        task=row.task,
        task_id=row.task_id,
        state=row.state,
        mode=row.mode,
        parked_at=datetime.fromtimestamp(row.parked_at / 1000, UTC),
        waited=max(0, row.now - row.parked_at) / 1000,
        problem=row.problem,
        number=row.number,
        id=row.pk,
        changed=max(0, row.now - row.changed_at) / 1000,
        attempts=row.attempts,
    )


def count_parked(name: str | None = None) -> int:
    """Return how many messages of one lock or of all are parked or promoted. Raises ``BackendUnavailable``."""
    from django_tasklock.celery.queue import rows

    return rows.count(_without_prefix(name))


def _without_prefix(name: str | None) -> str | None:
    return None if name is None else strip_prefix(name, get_settings().prefix)


def requeue(task_id: str) -> tuple[str, str] | None:
    """Make a dead message wait for its lock again.

    Return the name of its lock, and the reason if nothing was done; ``None`` if there is no such message. So do the
    others.
    """
    from django_tasklock.celery.queue import rows
    from django_tasklock.celery.queue.envelope import UnusableMessage, check, full_name
    from django_tasklock.celery.queue.promoter import promote

    row = rows.find(task_id)
    if row is None:
        return None
    name = full_name(row)
    if row.state != rows.DEAD:
        return name, f"it is not dead but {row.state}"
    try:
        check(row.message)
    except UnusableMessage as error:
        return name, str(error)
    if not rows.move(row, rows.PARKED, attempts=0, problem=""):
        return name, "it has changed just now"
    promote(name, current_app)
    return name, ""


def publish(task_id: str) -> tuple[str, str] | None:
    """Publish a parked message if it is its turn.

    Messages that were published earlier and have not arrived are not waited for.
    """
    from django_tasklock.celery.queue import rows
    from django_tasklock.celery.queue.envelope import full_name
    from django_tasklock.celery.queue.promoter import is_held, promote_next

    row = rows.find(task_id)
    if row is None:
        return None
    name = full_name(row)
    if row.state not in (rows.PARKED, rows.PROMOTED):
        return name, f"it is {row.state}"
    if is_held(name):
        return name, "its lock is held"
    if row.state == rows.PARKED and row.mode == "queue":
        get_backend().count_before(name, row.number, forget=True)
    published = promote_next(row.key, current_app)
    now = rows.find(task_id)
    if now is None or now.sent > row.sent:
        return name, ""
    if published:
        return name, "another one was published: it was its turn"
    return name, "it is not its turn, or it could not be sent: see what it waits for, and the log"


def discard(task_id: str, why: str) -> tuple[str, str] | None:
    """End a parked or dead message as revoked."""
    from django_tasklock.celery.queue import rows
    from django_tasklock.celery.queue.ending import revoke
    from django_tasklock.celery.queue.envelope import full_name

    row = rows.find(task_id)
    if row is None:
        return None
    name = full_name(row)
    if row.state not in (rows.DEAD, rows.PARKED):
        return name, f"it is {row.state}"
    return name, "" if revoke(row, current_app, why) else "it has changed just now"
