"""Messages that wait behind a free lock, for the sweep. Workers promote them every few seconds as well."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from celery import current_app

from django_tasklock.backends import get_backend
from django_tasklock.celery.parking import promotion, store as parking
from django_tasklock.celery.parking.rows import ParkedRow


class Stranded(NamedTuple):
    """The first message in the line of a free lock."""

    key: str
    name: str
    row: ParkedRow

    @property
    def waited(self) -> int:
        """Milliseconds since it was parked."""
        return self.row.now - self.row.parked_at


def look() -> Iterator[Stranded | None]:
    """Yield the stranded message, or ``None``, for each lock with kept messages, in order of the keys."""
    key = parking.next_key("")
    while key is not None:
        yield at(key)
        key = parking.next_key(key)


def at(key: str) -> Stranded | None:
    """Return the stranded message of the lock with this key; ``None`` if there is none, or it is on its way."""
    due = promotion.next_in_line(key, current_app).due
    if due is None:
        return None
    name, row = due.name, due.row
    early = row.now - row.parked_at <= promotion.PREDECESSOR_PATIENCE * 1000
    if row.mode == "queue" and early and get_backend().count_before(name, row.number):
        return None  # it waits for one that was published earlier
    return Stranded(key, name, row)


def promote(key: str) -> bool:
    """Put a stranded message back into the broker. Return False if it could not be sent, or another process did."""
    return promotion.promote_next(key, current_app)
