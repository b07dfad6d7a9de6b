"""Counts as rows, inserted by the statement that is counted or in its transaction.

Counting only inserts rows, so that it takes no lock and no process waits for another. Readers add the rows up. Now and
then the rows of one hour are folded into one, in a transaction that is rolled back unless it deletes all of them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from typing import Any

from django.db import Error, transaction
from django.db.models import F, Max, Model, QuerySet, Sum
from django.db.models.sql import InsertQuery

from django_tasklock.backends.codec import holder_of, json_object
from django_tasklock.backends.contract.metrics import (
    ACQUIRED,
    EXPIRED,
    HOLDS_KEPT_FOR,
    HOURS_KEPT,
    LONGEST_KIND,
    MARK,
    NOTED_FROM,
    RELEASED,
    TRANSFERRED,
    WAITED,
    Count,
    Counted,
    HoldRecord,
    Hour,
    Metrics,
    in_bucket,
    mark_of,
)
from django_tasklock.backends.database.names import in_ascii, key_of, unescaped
from django_tasklock.backends.database.purging import Purging
from django_tasklock.backends.database.rows import Row
from django_tasklock.conf import get_settings
from django_tasklock.db.clock import AggregateNow, Now
from django_tasklock.db.session import Session
from django_tasklock.models import CountRow, HoldRow
from django_tasklock.types import AcquireRequest, monotonic

HOUR = 3_600_000
AT_ONCE = 2000  # rows that one transaction folds
REMEMBERED = 20_000  # holds of this process whose kind and beginning are remembered
CHUNK = 500  # rows that one statement deletes: SQLite allows few parameters
UNCOUNTED = "\0"


class HoldStarts:
    """The kinds and beginnings of this process's holds, so that a release need not read them before it writes."""

    def __init__(self) -> None:
        self._holds: dict[str, tuple[str | None, float]] = {}

    def begin(self, request: AcquireRequest) -> None:
        """Record that a lock was granted."""
        self._holds[request.token] = request.kind, monotonic()
        if len(self._holds) > REMEMBERED:
            self._holds.pop(next(iter(self._holds)), None)

    def end(self, token: str) -> tuple[str | None, int] | None:
        """Remove a hold; return its kind and its duration in milliseconds. ``None``: it is not known here."""
        found = self._holds.pop(token, None)
        return None if found is None else (found[0], round((monotonic() - found[1]) * 1000))


class DatabaseMetrics(Metrics):
    """The counts in the database that the routers choose for their table."""

    def __init__(self) -> None:
        self.session = Session(CountRow, "count")
        self.purging = Purging(self.session, self.fold)
        self.hold_starts = HoldStarts()

    def write(self, alias: str, *counts: CountRow) -> None:
        """Insert rows made by ``count``, by one statement."""
        rows: list[Model] = [row for row in counts if row.kind != UNCOUNTED]
        if not rows:
            return
        query = InsertQuery(CountRow)
        query.insert_values(_FIELDS, rows)
        query.get_compiler(using=alias).execute_sql()
        for _ in rows:
            self.purging.count_row()

    def refused(self, alias: str, event: str, request: AcquireRequest) -> None:
        """Count a refusal. An error is ignored: the lock is busy whether or not that can be counted."""
        if request.on_busy:
            with suppress(Error):
                self.write(alias, count(event, request.kind))

    def granted(self, alias: str, request: AcquireRequest, before: Row | None = None) -> None:
        """Count a grant. ``before``: the row so far; a live lease was handed over, an unreleased one has expired."""
        if before is not None and before.live:
            self.write(alias, count(TRANSFERRED, request.kind))
            return
        event = count(ACQUIRED, request.kind) if request.waited is None else count(WAITED, request.kind, request.waited)
        if before is not None and before.expires_at > 0:
            self.ended(alias, before, EXPIRED, event)
        else:
            self.write(alias, event)

    def ended(self, alias: str, row: Row, how: str, *more: CountRow) -> None:
        """Count the end of the hold with this row, record the hold, and insert ``more`` by the same statement."""
        holder = json_object(row.holder)
        kind = kind_of(holder)
        held_for = max(0, row.now - row.acquired_at)
        self.write(alias, count(how, kind, held_for if how == RELEASED else None), *more)
        if kind is not None and (how != RELEASED or held_for >= NOTED_FROM):
            name = str(holder.get("name", ""))
            ended_at = row.expires_at if how == EXPIRED else row.now
            record_hold(alias, name, kind, row.holder, row.acquired_at, ended_at, how)

    def expired(self, alias: str, rows: Sequence[Row]) -> None:
        """Count and record many holds whose leases ran out. The oldest records of their names are not deleted here."""
        holders = [(row, json_object(row.holder)) for row in rows]
        counted = Counter(kind for _, holder in holders if (kind := kind_of(holder)) is not None)
        self.write(alias, *(count(EXPIRED, kind, number=number) for kind, number in counted.items()))
        notes = [
            HoldRow(
                key=key_of(str(holder.get("name", ""))),
                kind=kind_column(kind),
                holder=row.holder,
                at=row.acquired_at,
                ended_at=row.expires_at,
                how=EXPIRED,
            )
            for row, holder in holders
            if (kind := kind_of(holder)) is not None
        ]
        if notes and get_settings().HISTORY:
            HoldRow._base_manager.using(alias).bulk_create(notes)

    def fold(self, limit: int = AT_ONCE) -> int:
        """Fold rows into one per hour, event and kind, and delete old holds; return the number folded or deleted."""
        return self.session.run(lambda alias, again: _fold(alias) + _delete_old_holds(alias))

    def totals(self) -> Counted:
        def verb(alias: str, again: bool) -> Counted:
            sums = rows_of(alias).values_list("event", "kind").order_by().annotate(n=Sum("number"), ms=Sum("amount"))
            return _by_kind(sums)

        return self.session.run(verb, write=False)

    def hours(self, number: int) -> list[Hour]:
        def verb(alias: str, again: bool) -> list[Hour]:
            now = rows_of(alias).aggregate(now=AggregateNow(), last=Max("id"))["now"]
            first = (now // HOUR - number + 1) * HOUR
            rows = rows_of(alias).filter(at__gte=first).annotate(hour=F("at") - F("at") % HOUR)
            found: dict[int, list[tuple[Any, ...]]] = {}
            sums = rows.values_list("hour", "event", "kind").order_by().annotate(n=Sum("number"), ms=Sum("amount"))
            for hour, *row in sums:
                found.setdefault(int(hour) // 1000, []).append(tuple(row))
            return [Hour(at, _by_kind(found[at])) for at in sorted(found)]

        return self.session.run(verb, write=False)

    def add(self, event: str, kind: str) -> None:
        self.session.run(lambda alias, again: None if again else self.write(alias, count(event, kind)))
        self.purging.purge_if_due()

    def holds(self, name: str, limit: int) -> list[HoldRecord]:
        def verb(alias: str, again: bool) -> list[HoldRecord]:
            rows = HoldRow._base_manager.using(alias).filter(key=key_of(name)).order_by("-id")[:limit]
            return [
                HoldRecord(name, unescaped(row.kind), holder_of(json_object(row.holder)), row.at, row.ended_at, row.how)
                for row in rows
            ]

        return self.session.run(verb, write=False)


def atomic_if_counted(alias: str, kind: str | None) -> AbstractContextManager[Any]:
    """Return a transaction for an operation and its count; no transaction if it is not counted (``kind`` is None)."""
    if kind is None:
        return nullcontext()
    # No savepoint: inside an outer block, that of a test, only the end of that block matters.
    return transaction.atomic(using=alias, savepoint=False)


def count(event: str, kind: str | None, amount: int | None = None, number: int = 1) -> CountRow:
    """Return a row that counts an event of a kind. ``amount``: its duration in milliseconds."""
    name = event if amount is None else in_bucket(event, amount)
    column = UNCOUNTED if kind is None else kind_column(kind)
    return CountRow(at=Now(), event=name, kind=column, number=number, amount=amount or 0)


def kind_of(holder: dict[str, Any]) -> str | None:
    """Return the kind of a lock from the holder in its row; ``None``: the lock is not counted."""
    return None


def kind_column(kind: str) -> str:
    """Return a kind as the column stores it: in ASCII, truncated and with a hash if that is too long."""
    text = in_ascii(kind)
    if len(text) <= LONGEST_KIND:
        return text
    kept = ""
    for char in map(in_ascii, kind):
        if len(kept + char) > LONGEST_KIND - MARK:
            break
        kept += char
    return kept + mark_of(kind)


def rows_of(alias: str) -> QuerySet[CountRow]:
    """Return the rows of all counts in the database ``alias``."""
    return CountRow._base_manager.using(alias)


def record_hold(alias: str, name: str, kind: str, holder: str, at: int, ended_at: int, how: str) -> None:
    """Record a hold that has ended, and delete the oldest records of its name."""
    most = get_settings().HISTORY
    if not most:
        return
    holds = HoldRow._base_manager.using(alias)
    row = HoldRow(key=key_of(name), kind=kind_column(kind), holder=holder, at=at, ended_at=ended_at, how=how)
    holds.bulk_create([row])
    old = list(holds.filter(key=row.key).order_by("-id").values_list("id", flat=True)[most : most + 100])
    if old:
        holds.filter(id__in=old).delete()


def _by_kind(sums: Iterable[tuple[Any, ...]]) -> dict[tuple[str, str], Count]:
    """Return the sums by event and kind; rows of an earlier version have the kind without escapes."""
    found: dict[tuple[str, str], Count] = {}
    for event, column, number, amount in sums:
        key = event, unescaped(column)
        found[key] = found.get(key, Count()).plus(Count(int(number), int(amount)))
    return found


def _fold(alias: str) -> int:
    """Add single rows to the rows of their hours, and rows of hours long past to a row without an hour (``at`` 0)."""
    now = rows_of(alias).aggregate(now=AggregateNow(), last=Max("id"))["now"]
    kept_from = (now // HOUR - HOURS_KEPT) * HOUR
    single = list(rows_of(alias).filter(folded=False).order_by("id").values_list(*_PARTS)[:AT_ONCE])
    old = list(
        rows_of(alias).filter(folded=True, at__gt=0, at__lt=kept_from).order_by("id").values_list(*_PARTS)[:AT_ONCE]
    )
    parts = single + old
    sums: dict[tuple[int, str, str], Count] = {}
    for _, at, event, kind, number, amount in parts:
        key = (at - at % HOUR if at >= kept_from else 0, event, kind)
        sums[key] = sums.get(key, Count()).plus(Count(number, amount))
    if len(parts) < 2:
        return 0
    with transaction.atomic(using=alias):
        ids = [part[0] for part in parts]
        deleted = 0
        for start in range(0, len(ids), CHUNK):
            deleted += rows_of(alias).filter(id__in=ids[start : start + CHUNK])._raw_delete(alias)
        if deleted != len(ids):  # another process is folding the same rows
            transaction.set_rollback(True, using=alias)
            return 0
        _add(alias, sums)
    return len(ids)


def _add(alias: str, sums: dict[tuple[int, str, str], Count]) -> None:
    known: dict[tuple[int, str, str], int] = {}
    folded = rows_of(alias).filter(folded=True, at__in={at for at, _, _ in sums})
    for at, event, kind, pk in folded.values_list("at", "event", "kind", "id").order_by("-id"):
        known[at, event, kind] = pk
    new = []
    for key in sorted(sums):  # sorted, against deadlocks
        number, amount = sums[key]
        mine = rows_of(alias).filter(id=known.get(key, 0))
        if key not in known or not mine.update(number=F("number") + number, amount=F("amount") + amount):
            at, event, kind = key
            new.append(CountRow(at=at, event=event, kind=kind, number=number, amount=amount, folded=True))
    rows_of(alias).bulk_create(new)


def _delete_old_holds(alias: str) -> int:
    old = HoldRow._base_manager.using(alias).filter(ended_at__lt=Now() - HOLDS_KEPT_FOR).order_by("ended_at")
    ids = list(old.values_list("id", flat=True)[:CHUNK])
    return HoldRow._base_manager.using(alias).filter(id__in=ids).delete()[0] if ids else 0


_FIELDS = [field for field in CountRow._meta.local_concrete_fields if not field.primary_key]
_PARTS = ("id", "at", "event", "kind", "number", "amount")
