"""The table of messages that wait: their states, and the statements that read and change their rows.

A row is changed only by a statement whose condition is the state that was read. So of any number of processes that want
to put a message back into the broker exactly one does.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Sequence
from typing import Any

from django.core.exceptions import ImproperlyConfigured
from django.db import IntegrityError, transaction
from django.db.models import Count, OuterRef, Q, QuerySet, Subquery

from django_tasklock import counts
from django_tasklock.backends.database.names import in_ascii, key_of, storable
from django_tasklock.db.clock import Now
from django_tasklock.db.fresh import fresh
from django_tasklock.db.session import Session
from django_tasklock.exceptions import BackendUnavailable
from django_tasklock.models import ParkedMessage

Row = ParkedMessage
"""A row as a query read it. Times are the database's, in milliseconds since 1970."""
PARKED = "parked"
"""The message waits for its lock."""
PROMOTED = "promoted"
"""The message was put back into the broker, and a worker will receive it."""
DEAD = "dead"
"""No worker takes it, or its author is unknown: the queue goes on, an operator decides."""

REPLACED = "replaced"
"""The mode of a message that a newer one has replaced (``coalesce``), while its result is being stored."""

CHUNK = 500  # locks in one query: SQLite allows few parameters, and messages on their way that are read at once
DOWN = (BackendUnavailable, ImproperlyConfigured)
"""The errors of an unavailable table: the database is down, or the project has none."""
session = Session(Row, "parked message")
"""The database session for the table."""


def rows_of(alias: str, name: str | None = None) -> QuerySet[Row]:
    """Return the rows of one lock or of all, in the database ``alias``."""
    rows = fresh(Row._base_manager.using(alias))
    return rows if name is None else rows.filter(key=key_of(name))


def read(*parts: QuerySet[Row]) -> list[Row]:
    """Return the rows of all parts, by one statement, with the database's time as ``now``."""
    first, *rest = [part.annotate(now=Now()) for part in parts]  # type: ignore[no-redef]
    return list(first.union(*rest, all=True) if rest else first)


def find(task_id: str) -> Row | None:
    """Return the row of a message, if it has one."""
    if not storable(task_id):
        return None
    found = session.run(lambda alias, again: read(rows_of(alias).filter(task_id=task_id)), write=False)
    return found[0] if found else None


def read_next(key: str, passed: Collection[int] = (), tasks: Collection[str] = ()) -> tuple[Row | None, list[Row]]:
    """Return the next message that waits for the lock with this key, and the messages that are on their way.

    The next is the first in order of publication, with ``coalesce`` the last. ``passed``: rows to pass over; ``tasks``:
    tasks whose messages are passed over.
    """

    def verb(alias: str, again: bool) -> tuple[Row | None, list[Row]]:
        rows = rows_of(alias).filter(key=key).exclude(id__in=passed).exclude(task__in=tasks)
        parked = rows.filter(state=PARKED)
        ends = [_first(parked, "number", "id"), _first(parked, "-number", "-id")]
        # One statement: a row promoted between two would be in neither result, or a second one would be promoted.
        found = read(*ends, rows.filter(state=PROMOTED))
        waiting = sorted((row for row in found if row.state == PARKED), key=lambda row: (row.number, row.id))
        head = waiting[0] if waiting else None
        if head is not None and head.mode == "coalesce" and head.id != waiting[-1].id:
            newest = read(parked.filter(mode="coalesce").order_by("-number", "-id")[:1])
            head = newest[0] if newest else head
        return head, [row for row in found if row.state != PARKED]

    return session.run(verb, write=False)


def _first(rows: QuerySet[Row], *order: str) -> QuerySet[Row]:
    """Return the first of the rows in that order. Not a slice: SQLite accepts none in a union."""
    return rows_of(rows.db).filter(id=rows.order_by(*order).values("id")[:1])


def has_older(name: str, number: int) -> bool:
    """Return whether a message waits for ``name`` that was published earlier, by its sequence number."""

    def verb(alias: str, again: bool) -> bool:
        return rows_of(alias, name).filter(state__in=(PARKED, PROMOTED), number__lt=number).exists()

    return session.run(verb, name=name, write=False)


def has_newer(name: str, number: int) -> bool:
    """Return whether a message waits for ``name`` that was published later, by its sequence number."""

    def verb(alias: str, again: bool) -> bool:
        return rows_of(alias, name).filter(state__in=(PARKED, PROMOTED), number__gt=number).exists()

    return session.run(verb, name=name, write=False)


def find_older(key: str, number: int, task_id: str) -> list[Row]:
    """Return the ``coalesce`` messages that still wait for this lock and were published before that one."""

    def verb(alias: str, again: bool) -> list[Row]:
        rows = rows_of(alias).filter(key=key, mode="coalesce", state__in=(PARKED, PROMOTED), number__lt=number)
        return read(rows.exclude(task_id=task_id))

    return session.run(verb, write=False)


def next_key(after: str) -> str | None:
    """Return the next key that has messages, in order, by one index look-up however many messages there are."""
    return session.run(
        lambda alias, again: rows_of(alias).filter(key__gt=after).order_by("key").values_list("key", flat=True).first(),
        write=False,
    )


def park(
    name: str,
    number: int,
    mode: str,
    task: str,
    task_id: str,
    message: str,
    *,
    limit: int | None = None,
    due: float | None = None,
) -> bool:
    """Store a message. Return False if ``limit`` others wait for ``name`` already.

    A message that waits already keeps its place. ``due``: the broker has it, for so many seconds, for its turn at a
    rate limit.
    """
    new: dict[str, Any] = {"message": message, "state": PARKED, "changed_at": Now()}
    if due is not None:
        new |= {"state": PROMOTED, "changed_at": Now() + round(due * 1000), "sent": 1}

    def verb(alias: str, again: bool) -> bool:
        mine = rows_of(alias).filter(task_id=task_id)
        while not mine.update(attempts=0, problem="", **new):
            row = Row(
                key=key_of(name), name=in_ascii(name), number=number, mode=mode, task=task[:255], task_id=task_id,
                parked_at=Now(), **new,
            )  # fmt: skip
            if limit is not None:
                row.place = _free_place(alias, row.key, limit)
                if row.place is None:
                    return False
            # False: another delivery has inserted its row meanwhile, or another message has taken the place.
            if _insert(alias, row):
                break
        return True

    stored = session.run(verb, name=name)
    if stored and due is None:
        counts.count(counts.PARKED, counts.clean_kind(task))
    return stored


def is_due_later(row: Row) -> bool:
    """Return whether a message waits in the broker until its turn at a rate limit."""
    return row.state == PROMOTED and row.changed_at > row.now


def _free_place(alias: str, key: str, limit: int) -> int | None:
    """Return a free place, chosen at random so that simultaneous messages rarely try the same one."""
    waiting = rows_of(alias).filter(key=key, state__in=(PARKED, PROMOTED))
    taken = list(waiting.values_list("place", flat=True)[:limit])
    free = set(range(min(limit, len(taken) + 64))) - set(taken)
    return random.choice(sorted(free)) if len(taken) < limit and free else None


def _insert(alias: str, row: Row) -> bool:
    """Insert a row, without signals. Return False if the message has a row, or its place is taken."""
    try:
        with transaction.atomic(using=alias):
            rows_of(alias).bulk_create([row])
    except IntegrityError:
        return False
    return True


def _unchanged(alias: str, row: Row) -> QuerySet[Row]:
    return rows_of(alias).filter(id=row.id, state=row.state, sent=row.sent, changed_at=row.changed_at)


def move(row: Row, state: str, **more: Any) -> bool:
    """Set a message's state, unless its row has changed since it was read. Return whether it was set.

    ``more``: further columns and their values.
    """

    def verb(alias: str, again: bool) -> bool:
        return _unchanged(alias, row).update(state=state, changed_at=Now(), **more) > 0

    moved = session.run(verb)
    if moved and state == PROMOTED and row.mode != REPLACED:
        event = counts.REPLACED if more.get("mode") == REPLACED else counts.PROMOTED
        counts.count(event, counts.clean_kind(row.task))
    return moved


def count_attempt(row: Row, problem: str, *, alike: bool) -> None:
    """Count that a message could not be read. ``alike``: the same for all of this task that wait for the same lock.

    A message that was put back and has not arrived waits again: another app may be able to read it.
    """

    def verb(alias: str, again: bool) -> int:
        rows = _unchanged(alias, row)
        if alike:
            rows |= rows_of(alias).filter(key=row.key, task=row.task, state=PARKED, attempts=row.attempts)
        new = {"attempts": row.attempts + 1, "problem": in_ascii(problem)}
        return rows.update(state=PARKED, changed_at=Now(), **new)

    session.run(verb)


def remove_unchanged(row: Row) -> bool:
    """Remove a row, unless it has changed since it was read. Return whether it was removed."""

    def verb(alias: str, again: bool) -> bool:
        # If the reply of a first attempt was lost, that attempt may have removed the row.
        return _delete(_unchanged(alias, row)) > 0 or (again and not rows_of(alias).filter(id=row.id).exists())

    return session.run(verb)


def remove(task_id: str) -> bool:
    """Remove a message's row. Return whether it had one."""
    return session.run(lambda alias, again: _delete(rows_of(alias).filter(task_id=task_id)) > 0)


def _delete(rows: QuerySet[Row]) -> int:
    """Delete rows. With ``delete()`` a receiver of its signals would make it read them first: it would not compare."""
    return rows._raw_delete(rows.db)


def close_idle() -> None:
    """Close this thread's connection, unless a transaction is open on it."""
    session.close_idle()


# What people read


def list_rows(name: str | None, limit: int, offset: int, state: str | None = None) -> list[Row]:
    """Return rows in order of publication."""

    def verb(alias: str, again: bool) -> list[Row]:
        rows = rows_of(alias, name) if state is None else rows_of(alias, name).filter(state=state)
        return read(rows.order_by("number", "id")[offset : offset + limit])

    return session.run(verb, name=name, write=False)


def list_page(state: str, text: str, ids: Sequence[str], after: int, newest: bool, limit: int) -> list[Row]:
    """Return rows in the order in which they were parked.

    ``ids``: only messages with these; ``after``: the id of the row to continue after; ``text``: a message's id or the
    name of a lock, by an index, or a part of one, or of a task's name.
    """
    if not storable(text):
        return []

    def verb(alias: str, again: bool) -> list[Row]:
        rows = rows_of(alias).filter(state=state) if state else rows_of(alias)
        if ids:
            rows = rows.filter(task_id__in=[one for one in ids if storable(one)])
        if text:
            exact = (rows.filter(task_id=text), rows.filter(key=key_of(text)))
            part = rows.filter(Q(name__icontains=in_ascii(text)) | Q(task__icontains=text))
            rows = next((found for found in exact if found.exists()), part)
        if after:
            rows = rows.filter(id__lt=after) if newest else rows.filter(id__gt=after)
        return read(rows.order_by("-id" if newest else "id")[:limit])

    return session.run(verb, write=False)


def count(name: str | None) -> int:
    """Return how many messages wait, of one lock or of all."""
    return session.run(
        lambda alias, again: rows_of(alias, name).filter(state__in=(PARKED, PROMOTED)).count(), name=name, write=False
    )


def count_by_name(names: Sequence[str]) -> dict[str, int]:
    """Return the number of waiting messages by lock, for those of these locks with any."""
    keys = {key_of(name): name for name in names}

    def verb(alias: str, again: bool) -> dict[str, int]:
        found: dict[str, int] = {}
        for start in range(0, len(keys), CHUNK):
            part = list(keys)[start : start + CHUNK]
            rows = rows_of(alias).filter(key__in=part, state__in=(PARKED, PROMOTED))
            found |= {keys[key]: n for key, n in rows.order_by().values_list("key").annotate(n=Count("pk"))}
        return found

    return session.run(verb, write=False) if keys else {}


def count_states() -> dict[str, int]:
    """Return the number of messages in each state that occurs, from an index alone."""

    def verb(alias: str, again: bool) -> dict[str, int]:
        return dict(rows_of(alias).order_by().values_list("state").annotate(n=Count("pk")))

    return session.run(verb, write=False)


def count_before(ids: Sequence[int]) -> dict[int, int]:
    """Return for each of these rows how many wait for the same lock with lower sequence numbers, by the index."""

    def verb(alias: str, again: bool) -> dict[int, int]:
        before = rows_of(alias).filter(key=OuterRef("key"), state__in=(PARKED, PROMOTED), number__lt=OuterRef("number"))
        number = before.order_by().values("key").annotate(n=Count("pk")).values("n")
        rows = rows_of(alias).filter(id__in=list(ids)).annotate(before=Subquery(number))
        return {row: before or 0 for row, before in rows.values_list("id", "before")}

    return session.run(verb, write=False) if ids else {}


def moving_of(names: Sequence[str]) -> dict[str, list[Row]]:
    """Return the messages of these locks that are on their way, by lock, at most ``CHUNK`` in all."""
    keys = {key_of(name): name for name in names}

    def verb(alias: str, again: bool) -> list[Row]:
        return read(rows_of(alias).filter(key__in=list(keys), state=PROMOTED)[:CHUNK])

    found: dict[str, list[Row]] = {}
    for row in session.run(verb, write=False) if keys else ():
        found.setdefault(keys[row.key], []).append(row)
    return found
