"""The last holds of a name: the holder, the time, and how each ended."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime

from django_tasklock.backends import get_backend
from django_tasklock.names import bare_name


@dataclass(frozen=True, slots=True)
class PastHold:
    """A hold that has ended."""

    name: str
    kind: str
    holder: str
    """Host, process and task, as text."""
    task: str
    task_id: str
    acquired_at: datetime
    ended_at: datetime
    """For an expired hold: when the lease ended."""
    held_for: float
    """Seconds."""
    ended: str
    """``released``; ``expired``: the lease ran out; ``deleted``: the key was deleted or evicted; ``forced``."""


def last_holds(name: str, limit: int = 20) -> list[PastHold]:
    """Return the last holds of a lock, the latest first: ``TASKLOCK["HISTORY"]`` of them, for a week.

    Holds of a second or more are recorded, and those that did not end with a release. An expired one is recorded when
    its expiry is detected. Raises ``BackendUnavailable``, and ``TaskLockError`` if the store records none.
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
