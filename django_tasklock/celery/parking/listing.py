"""Parked messages in the form in which people see them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from django_tasklock.backends.contract.codec import json_object
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
    """One of ``parked``, ``promoted`` (on its way) and ``dead`` (no worker takes it, an operator decides)."""
    mode: str
    """The ``on_conflict`` that parked it: ``queue`` or ``coalesce``; ``replaced``: a newer message replaced it, and its
    result is being stored."""
    parked_at: datetime
    waited: float
    """Seconds since it was parked."""
    problem: str = ""
    """The reason why it is dead."""
    number: int = 0
    """The sequence number: of one lock's messages the one with the lowest is the first."""
    id: int = 0
    """The number of its row, greater for messages that were parked later."""
    changed: float = 0.0
    """Seconds since it entered this state."""
    attempts: int = 0
    """How often in a row it was put back into the broker without a worker taking it."""


def parked_messages(
    name: str | None = None, *, state: str | None = None, limit: int = 1000, offset: int = 0
) -> list[ParkedInfo]:
    """Return the kept messages, of one lock or of all, in order of publication. Raises ``BackendUnavailable``."""
    from django_tasklock.celery.parking import store as parking

    return [info_of(row) for row in parking.list_rows(_without_prefix(name), limit, offset, state)]


def info_of(row: ParkedMessage) -> ParkedInfo:
    """Return the information about a row that was read with the database's time as ``now``."""
    now: int = row.now  # type: ignore[attr-defined]
    return ParkedInfo(
        name=full_name(row.message, row.name),
        task=row.task,
        task_id=row.task_id,
        state=row.state,
        mode=row.mode,
        parked_at=datetime.fromtimestamp(row.parked_at / 1000, UTC),
        waited=max(0, now - row.parked_at) / 1000,
        problem=row.problem,
        number=row.ticket,
        id=row.pk,
        changed=max(0, now - row.changed_at) / 1000,
        attempts=row.attempts,
    )


def full_name(message: str, shown: str) -> str:
    """Return the lock's name from the message, or else from the row, where it may be truncated."""
    found = json_object(message).get("name")
    return found if isinstance(found, str) else shown


def count_parked(name: str | None = None) -> int:
    """Return how many messages of one lock or of all are parked or promoted. Raises ``BackendUnavailable``."""
    from django_tasklock.celery.parking import store as parking

    return parking.count(_without_prefix(name))


def _without_prefix(name: str | None) -> str | None:
    return None if name is None else strip_prefix(name, get_settings().prefix)


def count_parked_by_name(names: Sequence[str]) -> dict[str, int]:
    """Return the number of waiting messages by lock, for those of these locks with any.

    Raises ``BackendUnavailable``.
    """
    from django_tasklock.celery.parking import store as parking

    return parking.count_by_name(names)
