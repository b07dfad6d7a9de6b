"""Parked messages in the form in which people see them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from django_tasklock.backends.contract.codec import holder_of, json_object
from django_tasklock.conf import get_settings
from django_tasklock.locks.holder import alive
from django_tasklock.names import strip_prefix

if TYPE_CHECKING:
    from django_tasklock.models import ParkedMessage

NO_HOLDER = "{}"
"""The holder of a message that was never started."""


@dataclass(frozen=True, slots=True)
class ParkedInfo:
    """A message that waits for its lock outside the broker. Times are the database's."""

    name: str
    task: str
    task_id: str
    state: str
    """One of ``parked``, ``promoted`` (on its way), ``running`` (kept in case its worker dies), ``ended`` and ``dead``
    (no worker takes it, an operator decides)."""
    mode: str
    """The ``on_conflict`` that parked it: ``queue`` or ``coalesce``; ``replaced``: a newer message replaced it, and its
    result is being stored."""
    parked_at: datetime
    waited: float
    """Seconds since it was parked."""
    crashes: int
    """The number of workers that died of it."""
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
    holder: str = ""
    """The holder that runs it, or ran it last."""
    alive: bool | None = None
    """Whether that process is alive; ``None`` if there is none, or it cannot be known from here."""


def parked_messages(
    name: str | None = None, *, state: str | None = None, limit: int = 1000, offset: int = 0
) -> list[ParkedInfo]:
    """Return the kept messages, of one lock or of all, in order of publication. Raises ``BackendUnavailable``."""
    from django_tasklock.celery.parking import store as parking

    return [info_of(row) for row in parking.list_rows(_without_prefix(name), limit, offset, state)]


def info_of(row: ParkedMessage) -> ParkedInfo:
    """Return the information about a row that was read with the database's time as ``now``."""
    now: int = row.now  # type: ignore[attr-defined]
    ran = row.holder != NO_HOLDER
    holder = holder_of(json_object(row.holder))
    return ParkedInfo(
        name=full_name(row.message, row.name),
        task=row.task,
        task_id=row.task_id,
        state=row.state,
        mode=row.mode,
        parked_at=datetime.fromtimestamp(row.parked_at / 1000, UTC),
        waited=max(0, now - row.parked_at) / 1000,
        crashes=row.crashes,
        problem=row.problem,
        number=row.ticket,
        id=row.pk,
        changed=max(0, now - row.changed_at) / 1000,
        attempts=row.attempts,
        holder=str(holder) if ran else "",
        alive=alive(holder) if ran else None,
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
