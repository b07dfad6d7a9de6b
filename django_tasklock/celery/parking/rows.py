"""The table of kept messages: their states, rows as a query read them, and statements."""

from __future__ import annotations

from contextlib import nullcontext
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
"""The message waits for its lock."""
PROMOTED = "promoted"
"""The message was put back into the broker, and a worker will receive it."""
DEAD = "dead"
"""No worker takes it, or its author is unknown: the line goes on, an operator decides."""

REPLACED = "replaced"
"""The mode of a message that a newer one has replaced (``coalesce``), while its result is being stored."""

_FIELDS = (
    "id",
    "key",
    "ticket",
    "mode",
    "state",
    "task",
    "task_id",
    "sent",
    "attempts",
    "parked_at",
    "changed_at",
)


@dataclass(frozen=True, slots=True)
class ParkedRow:
    """A row as one query read it. Times are the database's, in milliseconds since 1970."""

    id: int
    key: str
    number: int
    """The sequence number, in the column ``ticket``."""
    mode: str
    state: str
    task: str
    task_id: str
    sent: int
    attempts: int
    parked_at: int
    changed_at: int
    now: int
    message: str | None = None
    """The message itself, if that query read it."""


class ParkedLine(NamedTuple):
    """The messages that are kept for one lock."""

    head: ParkedRow | None
    """The next of the parked messages, with its text."""
    others: list[ParkedRow]
    """The messages that are on their way."""
    alone: bool = False
    """Whether no other message is parked or promoted."""


class Neighbours(NamedTuple):
    """The other messages that wait for the lock of a ``coalesce`` message."""

    newer: bool
    """Whether a message was published later."""
    older: list[ParkedRow]
    """The ``coalesce`` messages that were published earlier."""


DOWN = (BackendUnavailable, ImproperlyConfigured)
"""The errors of an unavailable table: the database is down, or the project has none."""
session = Session(ParkedMessage, "parked message")
"""The database session for the table."""


def rows_of(alias: str) -> QuerySet[ParkedMessage]:
    """Return all rows, in the database ``alias``."""
    return ParkedMessage._base_manager.using(alias)


def read(*parts: QuerySet[ParkedMessage], message: bool = False) -> list[ParkedRow]:
    """Return the rows of all parts, by one statement, with the database's time.

    A row that is in two parts is returned twice. ``message``: read those of the first part with their messages.
    """
    first, *rest = [_columns(rows, message=message and not number) for number, rows in enumerate(parts)]
    return [ParkedRow(*values) for values in (first.union(*rest, all=True) if rest else first)]


def _columns(rows: QuerySet[ParkedMessage], *, message: bool) -> QuerySet[ParkedMessage, tuple[Any, ...]]:
    text = F("message") if message else Value(None, output_field=TextField())
    return rows.annotate(now=Now(), text=text).values_list(*_FIELDS, "now", "text")


def first_of(rows: QuerySet[ParkedMessage], *order: str) -> QuerySet[ParkedMessage]:
    """Return the first of the rows in that order, as a part of a statement; an index finds it.

    Not a slice: SQLite accepts none in a union.
    """
    return rows_of(rows.db).filter(id=rows.order_by(*order).values("id")[:1])


def insert(alias: str, row: ParkedMessage) -> bool:
    """Insert a row by a single statement. Return False if the message has a row, or its place is taken.

    Unlike ``save()`` and ``bulk_create()`` it sends no signals, whose receivers are for other models, and opens no
    transaction.
    """
    fields = [field for field in ParkedMessage._meta.local_concrete_fields if not field.primary_key]
    query = InsertQuery(ParkedMessage)
    query.insert_values(fields, [row])
    in_block = connections[alias].in_atomic_block  # a test's transaction, which an error would break
    try:
        with transaction.atomic(using=alias) if in_block else nullcontext():
            query.get_compiler(using=alias).execute_sql()
    except IntegrityError:
        return False
    return True


def delete(rows: QuerySet[ParkedMessage]) -> int:
    """Delete the rows by a single statement, without signals or a transaction. Return how many there were."""
    return rows._raw_delete(rows.db)


def close_idle() -> None:
    """Close this thread's connection, unless a transaction is open on it."""
    session.close_idle()
