"""The last holds of a name: who had the lock, when, and how that ended."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime

from django_tasklock.backends import get_backend
from django_tasklock.names import bare_name


@dataclass(frozen=True, slots=True)
class PastHold:
    """One hold that is over."""

    name: str
    kind: str
    holder: str
    """Host, process, task: for people."""
    task: str
    task_id: str
    acquired_at: datetime
    ended_at: datetime
    """Of one that expired: when its lease ended."""
    held_for: float
    """Seconds."""
    ended: str
    """``released``; ``expired``: its lease ran out; ``deleted``: its key was deleted or evicted; ``forced``."""


def last_holds(name: str, limit: int = 20) -> list[PastHold]:
    """Return the last holds of a lock, the latest first: ``TASKLOCK["HISTORY"]`` of them are kept for a week.

    Kept are those of a second and more, and those that did not end with a release. One that expired is known when
    somebody has found it. Raises ``BackendUnavailable``, ``TaskLockError`` where the store keeps none.
    """
    bare = bare_name(name)
    return [
        PastHold(
            bare,
            hold.kind,
            str(hold.holder),
            hold.holder.task,
            hold.holder.task_id,
            datetime.fromtimestamp(hold.at / 1000, UTC),
            datetime.fromtimestamp(hold.ended_at / 1000, UTC),
            max(0, hold.ended_at - hold.at) / 1000,
            hold.how,
        )
        for hold in get_backend().metrics.holds(bare, limit)
    ]
