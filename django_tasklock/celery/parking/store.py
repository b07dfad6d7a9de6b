"""Messages kept in the database, as they wait for their lock.

A row is changed only by an UPDATE whose condition is the state that was read. So of any number of processes that want
to put a message back into the broker exactly one does.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Sequence
from typing import Any

from django.db.models import Count, F, OuterRef, Q, QuerySet, Subquery

from django_tasklock import counts
from django_tasklock.backends.database.names import in_ascii, key_of, storable
from django_tasklock.celery.parking.rows import (
    DEAD,
    PARKED,
    PROMOTED,
    REPLACED,
    Neighbours,
    ParkedLine,
    ParkedRow,
    delete,
    first_of,
    insert,
    read,
    rows_of,
    session,
)
from django_tasklock.db.clock import Now
from django_tasklock.models import ParkedMessage

MOVING = 500  # messages on their way that are read at once
CHUNK = 500  # locks in one query: SQLite allows few parameters


def find(task_id: str) -> ParkedRow | None:
    """Return the row of a message, if it has one."""
    if not storable(task_id):
        return None
    found = session.run(lambda alias, again: read(rows_of(alias).filter(task_id=task_id)), write=False)
    return found[0] if found else None


def read_line(key: str, excluded_ids: Collection[int] = (), excluded_tasks: Collection[str] = ()) -> ParkedLine:
    """Return the messages that wait for the lock with this key, in order of publication.

    With ``coalesce`` the newest is the head. ``excluded_ids``: rows to pass over; ``excluded_tasks``: tasks whose
    messages are passed over.
    """

    def verb(alias: str, again: bool) -> ParkedLine:
        rows = rows_of(alias).filter(key=key)
        if excluded_ids:
            rows = rows.exclude(id__in=excluded_ids)
        if excluded_tasks:
            rows = rows.exclude(task__in=excluded_tasks)
        parked = rows.filter(state=PARKED)
        oldest, newest = first_of(parked, "ticket", "id"), first_of(parked, "-ticket", "-id")
        moving = rows.filter(state=PROMOTED)
        # One statement: a row promoted between two would be in neither result, or a second one would be promoted.
        found = sorted(read(oldest, newest, moving, message=True), key=lambda row: (row.number, row.id))
        waiting = [row for row in found if row.state == PARKED]  # the oldest with its message, and the newest
        others = [row for row in found if row.state != PARKED]
        head = next((row for row in waiting if row.message is not None), None)
        alone = {row.id for row in waiting} == {head and head.id} and all(row.state != PROMOTED for row in others)
        if head is not None and head.mode == "coalesce" and not alone:
            newer = waiting[-1] if waiting[-1].mode == "coalesce" else None
            newer = newer or next(iter(read(parked.filter(mode="coalesce").order_by("-ticket", "-id")[:1])), None)
            head = head if newer is None or newer.id == head.id else newer
        return ParkedLine(head, others, alone)

    return session.run(verb, write=False)


def has_older(name: str, number: int) -> bool:
    """Return whether a message waits for ``name`` that was published earlier, by its sequence number."""

    def verb(alias: str, again: bool) -> bool:
        older = rows_of(alias).filter(key=key_of(name), ticket__lt=number)
        # Only the nearest row of each state, so that the index alone answers.
        return bool(read(*(first_of(older.filter(state=state), "-ticket") for state in (PARKED, PROMOTED))))

    return session.run(verb, name=name, write=False)


def read_neighbours(name: str, number: int, task_id: str) -> Neighbours:
    """Return the other messages that wait for ``name``, as seen by a ``coalesce`` message with this sequence number."""

    def verb(alias: str, again: bool) -> Neighbours:
        newer = rows_of(alias).filter(key=key_of(name), ticket__gt=number)
        nearest = [first_of(newer.filter(state=state), "ticket") for state in (PARKED, PROMOTED)]
        found = read(*nearest, _older(alias, key_of(name), number, task_id))
        return Neighbours(any(row.number > number for row in found), [row for row in found if row.number < number])

    return session.run(verb, name=name, write=False)


def park(
    name: str, number: int, mode: str, task: str, task_id: str, message: str, limit: int | None = None,
    fresh: bool = False,
) -> bool:  # fmt: skip
    """Store a message. Return False if ``limit`` others wait for ``name`` already.

    A message that waits already keeps its place. ``fresh``: it probably has no row yet.
    """

    def verb(alias: str, again: bool) -> bool:
        mine = rows_of(alias).filter(task_id=task_id)
        new = {"message": message, "changed_at": Now(), "state": PARKED, "attempts": 0, "problem": ""}
        first = fresh
        while first or not mine.update(**new):
            first = False
            row = ParkedMessage(
                key=key_of(name), name=in_ascii(name), ticket=number, mode=mode, state=PARKED, task=task[:255],
                task_id=task_id, message=message, parked_at=Now(), changed_at=Now(),
            )  # fmt: skip
            if limit is not None:
                row.place = _free_place(alias, row.key, limit)
                if row.place is None:
                    return False
            # False: another delivery has inserted its row meanwhile, or another message has taken the place.
            if insert(alias, row):
                break
        return True

    done = session.run(verb, name=name)
    if done:
        _count(counts.PARKED, task)
    return done


def _event_of(before: ParkedRow, state: str, mode: str) -> str | None:
    """Return the event to count when a message changes to this state; ``None``: nothing is counted."""
    if state != PROMOTED or before.mode == REPLACED:
        return None
    if mode == REPLACED:
        return counts.SUPERSEDED
    return counts.PROMOTED


def _count(event: str | None, task: str) -> None:
    if event is not None:
        counts.count(event, counts.clean_kind(task))


def _free_place(alias: str, key: str, limit: int) -> int | None:
    """Return a free place, chosen at random so that simultaneous messages rarely try the same one."""
    waiting = rows_of(alias).filter(key=key, state__in=(PARKED, PROMOTED))
    taken = list(waiting.values_list("place", flat=True)[:limit])
    free = set(range(min(limit, len(taken) + 64))) - set(taken)
    return random.choice(sorted(free)) if len(taken) < limit and free else None


def _unchanged(alias: str, row: ParkedRow) -> QuerySet[ParkedMessage]:
    return rows_of(alias).filter(id=row.id, state=row.state, sent=row.sent, changed_at=row.changed_at)


def move_to(row: ParkedRow, state: str, *, sent: int = 0, **more: Any) -> bool:
    """Set a message's state, unless its row has changed since it was read. Return whether it was set.

    ``more``: further columns and their values.
    """

    def verb(alias: str, again: bool) -> bool:
        new = {"sent": F("sent") + sent, "changed_at": Now(), **more}
        return _unchanged(alias, row).update(state=state, **new) > 0

    moved = session.run(verb)
    if moved:
        _count(_event_of(row, state, more.get("mode", "")), row.task)
    return moved


def find_older(key: str, number: int, task_id: str) -> list[ParkedRow]:
    """Return the ``coalesce`` messages that still wait and were published before that one."""
    return session.run(lambda alias, again: read(_older(alias, key, number, task_id)), write=False)


def _older(alias: str, key: str, number: int, task_id: str) -> QuerySet[ParkedMessage]:
    rows = rows_of(alias).filter(key=key, mode="coalesce", state__in=(PARKED, PROMOTED))
    return rows.filter(ticket__lt=number).exclude(task_id=task_id)


def read_message(row: ParkedRow) -> str | None:
    """Return the message itself; ``None`` if the row is gone."""
    if row.message is not None:
        return row.message
    return session.run(
        lambda alias, again: rows_of(alias).filter(id=row.id).values_list("message", flat=True).first(), write=False
    )


def remove_unchanged(row: ParkedRow) -> bool:
    """Remove a row, unless it has changed since it was read. Return whether it was removed."""

    def verb(alias: str, again: bool) -> bool:
        # If the reply of a first attempt was lost, that attempt may have removed the row.
        return delete(_unchanged(alias, row)) > 0 or (again and not rows_of(alias).filter(id=row.id).exists())

    return session.run(verb)


def remove(task_id: str) -> bool:
    """Remove a message's row. Return whether it had one."""
    return session.run(lambda alias, again: delete(rows_of(alias).filter(task_id=task_id)) > 0)


def next_key(after: str) -> str | None:
    """Return the next key that has messages, in order, by one index look-up however many messages there are."""
    return session.run(
        lambda alias, again: rows_of(alias).filter(key__gt=after).order_by("key").values_list("key", flat=True).first(),
        write=False,
    )


def find_alike(row: ParkedRow, limit: int) -> list[ParkedRow]:
    """Return the first rows with the same lock and task, including that row."""

    def verb(alias: str, again: bool) -> list[ParkedRow]:
        rows = rows_of(alias).filter(key=row.key, task=row.task).exclude(state=DEAD)
        return read(rows.order_by("ticket", "id")[:limit])

    return session.run(verb, write=False)


def list_rows(name: str | None, limit: int, offset: int, state: str | None = None) -> list[ParkedMessage]:
    """Return rows in order of publication, each with the database's time as ``now``."""

    def verb(alias: str, again: bool) -> list[ParkedMessage]:
        rows = rows_of(alias) if name is None else rows_of(alias).filter(key=key_of(name))
        if state is not None:
            rows = rows.filter(state=state)
        return list(rows.annotate(now=Now()).order_by("ticket", "id")[offset : offset + limit])

    return session.run(verb, name=name, write=False)


def count(name: str | None) -> int:
    """Return how many messages wait, of one lock or of all."""

    def verb(alias: str, again: bool) -> int:
        rows = rows_of(alias) if name is None else rows_of(alias).filter(key=key_of(name))
        return rows.filter(state__in=(PARKED, PROMOTED)).count()

    return session.run(verb, name=name, write=False)


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


def list_page(state: str, text: str, ids: Sequence[str], after: int, newest: bool, limit: int) -> list[ParkedMessage]:
    """Return rows in the order in which they were parked, each with the database's time as ``now``.

    ``ids``: only messages with these; ``after``: the id of the row to continue after; ``text``: a message's id or the
    name of a lock, by an index, or a part of one, or of a task's name.
    """
    if not storable(text):
        return []

    def verb(alias: str, again: bool) -> list[ParkedMessage]:
        rows = rows_of(alias).filter(state=state) if state else rows_of(alias)
        if ids:
            rows = rows.filter(task_id__in=[one for one in ids if storable(one)])
        if text:
            exact = (rows.filter(task_id=text), rows.filter(key=key_of(text)))
            part = rows.filter(Q(name__icontains=in_ascii(text)) | Q(task__icontains=text))
            rows = next((found for found in exact if found.exists()), part)
        if after:
            rows = rows.filter(id__lt=after) if newest else rows.filter(id__gt=after)
        return list(rows.annotate(now=Now()).order_by("-id" if newest else "id")[:limit])

    return session.run(verb, write=False)


def count_states() -> dict[str, int]:
    """Return the number of messages in each state that occurs, from an index alone."""

    def verb(alias: str, again: bool) -> dict[str, int]:
        return dict(rows_of(alias).order_by().values_list("state").annotate(n=Count("pk")))

    return session.run(verb, write=False)


def count_before(ids: Sequence[int]) -> dict[int, int]:
    """Return for each of these rows how many wait for the same lock with lower sequence numbers, by the index."""

    def verb(alias: str, again: bool) -> dict[int, int]:
        before = rows_of(alias).filter(key=OuterRef("key"), state__in=(PARKED, PROMOTED), ticket__lt=OuterRef("ticket"))
        number = before.order_by().values("key").annotate(n=Count("pk")).values("n")
        rows = rows_of(alias).filter(id__in=list(ids)).annotate(before=Subquery(number))
        return {row: before or 0 for row, before in rows.values_list("id", "before")}

    return session.run(verb, write=False) if ids else {}


def moving_of(names: Sequence[str]) -> dict[str, list[ParkedRow]]:
    """Return the messages of these locks that are on their way, by lock, at most ``MOVING`` in all."""
    keys = {key_of(name): name for name in names}

    def verb(alias: str, again: bool) -> list[ParkedRow]:
        return read(rows_of(alias).filter(key__in=list(keys), state=PROMOTED)[:MOVING])

    found: dict[str, list[ParkedRow]] = {}
    for row in session.run(verb, write=False) if keys else ():
        found.setdefault(keys[row.key], []).append(row)
    return found
