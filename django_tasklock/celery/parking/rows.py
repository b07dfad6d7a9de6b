"""A message kept in the database: its states, one row as a query saw it, and the table."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import NamedTuple

from django.core.exceptions import ImproperlyConfigured
from django.db import connections
from django.db.models import QuerySet

from django_tasklock.db.clock import Now
from django_tasklock.db.session import Session
from django_tasklock.exceptions import BackendUnavailable
from django_tasklock.models import ParkedMessage

PARKED = "parked"
"""It waits for its lock."""
PROMOTED = "promoted"
"""It was put back into the broker, and a worker will take it up."""
RUNNING = "running"
"""A worker runs it. Kept for messages that are acknowledged late: they come back if that worker dies."""
ENDED = "ended"
"""Its run is over, and its result is being stored."""
SUPERSEDED = "superseded"
"""A newer one took its place (``coalesce``); it was put back to say so."""
DEAD = "dead"
"""No worker takes it, or nobody knows who wrote it: the line goes on without it, and an operator decides."""

_FIELDS = (
    "id",
    "key",
    "ticket",
    "mode",
    "state",
    "task",
    "task_id",
    "holder",
    "sent",
    "crashes",
    "attempts",
    "parked_at",
    "changed_at",
)


@dataclass(frozen=True, slots=True)
class Parked:
    """A kept message as one query saw it. Times are the database's, in milliseconds since 1970."""

    id: int
    key: str
    ticket: int
    mode: str
    state: str
    task: str
    task_id: str
    holder: str
    sent: int
    crashes: int
    attempts: int
    parked_at: int
    changed_at: int
    now: int


class Line(NamedTuple):
    """Who waits for one lock: the first that is parked, and all that are neither parked nor over."""

    head: Parked | None
    others: list[Parked]


DOWN = (BackendUnavailable, ImproperlyConfigured)
"""What is raised where the table cannot be asked: the database is down, or the project has none."""
session = Session(ParkedMessage, "parked message")
"""Where the table is asked."""


def rows_of(alias: str) -> QuerySet[ParkedMessage]:
    """All rows, in the database ``alias``."""
    return ParkedMessage._base_manager.using(alias)


def read(rows: QuerySet[ParkedMessage]) -> list[Parked]:
    """The rows, with the database's time."""
    return [Parked(*values) for values in rows.annotate(now=Now()).values_list(*_FIELDS, "now")]


@contextmanager
def brief_connection() -> Iterator[None]:
    """Close this thread's connection at the end if it was not open before."""
    was_open = connections[session.alias].connection is not None
    try:
        yield
    finally:
        if not was_open:
            close_idle()


def close_idle() -> None:
    """Close this thread's connection, unless a transaction is open on it."""
    session.close_idle()
