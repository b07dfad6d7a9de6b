"""The table of kept messages: their states, a row as a query saw it, statements."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, NamedTuple

from django.core.exceptions import ImproperlyConfigured
from django.db import IntegrityError, connections, transaction
from django.db.models import F, QuerySet, TextField, Value
from django.db.models.sql import InsertQuery

from django_tasklock.db.clock import Now
from django_tasklock.db.session import Session
from django_tasklock.exceptions import BackendUnavailable
from django_tasklock.models import ParkedMessage

PARKED = "parked"
"""The state of a message that waits for its lock."""
PROMOTED = "promoted"
"""The state of one that was put back into the broker, where a worker will take it up."""
RUNNING = "running"
"""The state of one that a worker runs. Kept if it is acknowledged late: it comes back if that worker dies."""
ENDED = "ended"
"""The state of one whose run is over and whose result is being stored."""
SUPERSEDED = "superseded"
"""The state of one whose place a newer one took (``coalesce``); it was put back to say so."""
DEAD = "dead"
"""The state of one that no worker takes, or nobody knows who wrote: the line goes on, an operator decides."""

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
class ParkedRow:
    """A row as one query saw it. Times are the database's, in milliseconds since 1970."""

    id: int
    key: str
    number: int
    """The sequence number, in the column ``ticket``."""
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
    message: str | None = None
    """The message itself, if that query read it."""


class ParkedLine(NamedTuple):
    """What is kept for one lock."""

    head: ParkedRow | None
    """The message whose turn it is among those that are parked, with its text."""
    others: list[ParkedRow]
    """Those that are neither parked nor over."""
    alone: bool = False
    """Nobody else is parked, and nobody is on the way."""


class Neighbours(NamedTuple):
    """Who else waits for the lock of a ``coalesce`` message."""

    newer: bool
    """A message was published later."""
    older: list[ParkedRow]
    """The ``coalesce`` messages that were published before."""


DOWN = (BackendUnavailable, ImproperlyConfigured)
"""The errors of a table that cannot be asked: the database is down, or the project has none."""
session = Session(ParkedMessage, "parked message")
"""The session in which the table is asked."""


def rows_of(alias: str) -> QuerySet[ParkedMessage]:
    """Return all rows, in the database ``alias``."""
    return ParkedMessage._base_manager.using(alias)


def read(*parts: QuerySet[ParkedMessage], message: bool = False) -> list[ParkedRow]:
    """Return the rows of all parts, by one statement, with the database's time.

    A row that is in two parts is returned twice. ``message``: those of the first part with their messages.
    """
    first, *rest = [_columns(rows, message=message and not number) for number, rows in enumerate(parts)]
    return [ParkedRow(*values) for values in (first.union(*rest, all=True) if rest else first)]


def _columns(rows: QuerySet[ParkedMessage], *, message: bool) -> QuerySet[ParkedMessage, tuple[Any, ...]]:
    text = F("message") if message else Value(None, output_field=TextField())
    return rows.annotate(now=Now(), text=text).values_list(*_FIELDS, "now", "text")


def first_of(rows: QuerySet[ParkedMessage], *order: str) -> QuerySet[ParkedMessage]:
    """Return the first of the rows in that order as a part of a statement: one look into the index finds it.

    Not a slice: SQLite takes none as a part of a union.
    """
    return rows_of(rows.db).filter(id=rows.order_by(*order).values("id")[:1])


def insert(alias: str, row: ParkedMessage) -> bool:
    """Insert a row by a single statement. Return False if there is one of that message, or its place is taken.

    Without what ``save()`` and ``bulk_create()`` add: signals for receivers that mean other models, and a transaction.
    """
    fields = [field for field in ParkedMessage._meta.local_concrete_fields if not field.primary_key]
    query = InsertQuery(ParkedMessage)
    query.insert_values(fields, [row])
    in_block = connections[alias].in_atomic_block  # that of a test, which an error would spoil
    try:
        with transaction.atomic(using=alias) if in_block else nullcontext():
            query.get_compiler(using=alias).execute_sql()
    except IntegrityError:
        return False
    return True


def delete(rows: QuerySet[ParkedMessage]) -> int:
    """Delete the rows by a single statement, without signals or a transaction. Return how many there were."""
    return rows._raw_delete(rows.db)


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
