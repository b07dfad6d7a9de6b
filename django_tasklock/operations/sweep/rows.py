"""Claimed rows without a live lock: their workers died, and their locks lapsed or were lost."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from django.db.models import Model

from django_tasklock.backends.contract.locks import LockStore
from django_tasklock.guards.guard import Guarded
from django_tasklock.guards.rows import Row, claimed_pages, read, state_columns
from django_tasklock.operations.guarded_rows import alike, lock_name
from django_tasklock.operations.sweep.guarded import Guards, claiming
from django_tasklock.operations.sweep.putback import PutBackResult, RowRestorer
from django_tasklock.operations.sweep.report import Came, Finding, Kind, Notebook
from django_tasklock.operations.sweep.stream import live_locks, second_look
from django_tasklock.operations.sweep.terms import SweepOptions

CANNOT_LIST = "the store cannot list its locks, so one of another name cannot be ruled out"


class Mark(NamedTuple):
    """A claimed row at the first look."""

    model: type[Model]
    entries: list[Guarded]
    row: Row
    names: tuple[str, ...]
    """Of the locks that go with it, as far as the primary key alone tells them."""
    known: bool
    """Whether these are all that a task would take without being told otherwise."""

    @property
    def name(self) -> str:
        """That of its lock; empty if it may be one of several, or is not known."""
        return self.names[0] if self.known and len(self.names) == 1 else ""

    @property
    def key(self) -> tuple[type[Model], Any]:
        """Its model and primary key."""
        return self.model, self.row.pk

    @property
    def called(self) -> str:
        """As people are told of it."""
        return f"{self.model._meta.label_lower}:{self.row.pk}"


class Locks:
    """The live locks, as far as they say anything of a row."""

    def __init__(self, backend: LockStore, guards: Guards, listed: bool) -> None:
        self.backend = backend
        self.guards = guards
        self.listed = listed
        """Whether the store can list them."""

    def named(self, mark: Mark) -> bool:
        """Return whether a lock that goes with the row is held, by whomever."""
        return any(self.backend.get(name) is not None for name in mark.names)

    def missing(self, marks: list[Mark]) -> list[Mark]:
        """Return those that no live lock has anything to do with: neither by its name, nor by its token, nor by its
        row.
        """
        left = [mark for mark in marks if not self.named(mark)]
        if not left or not self.listed:
            return left
        tokens = {mark.row.token for mark in left if mark.row.token}
        rows = {mark.key for mark in left}
        met: set[str] = set()
        worked_on: set[tuple[type[Model], Any]] = set()
        for page in live_locks(self.backend):
            met |= {record.token for record in page if record.token in tokens}
            worked_on |= rows.intersection(map(self.guards.row_of, page))
        return [mark for mark in left if mark.row.token not in met and mark.key not in worked_on]


def sweep_rows(locks: Locks, guards: Guards, restorer: RowRestorer, options: SweepOptions, notes: Notebook) -> None:
    """Look twice, and act on what the second look confirms.

    A row is looked at before its lock: whoever has claimed it had the lock before, and has it until the row is closed.
    """
    for batch in second_look(_marks(locks, guards, restorer, options, notes), options.pause):
        still = _unchanged(batch)
        abandoned = {mark.called for mark in locks.missing(still)}
        same = {mark.called for mark in still}
        for mark in batch:
            if mark.called not in same:
                notes.add(_finding(mark, Came.CHANGED, "the row was no longer so at the second look"))
            elif mark.called not in abandoned:
                notes.add(_finding(mark, Came.CHANGED, "it had a live lock at the second look"))
            else:
                notes.add(_act(mark, locks, restorer, options))
        notes.write(options.by)


def _marks(
    locks: Locks, guards: Guards, restorer: RowRestorer, options: SweepOptions, notes: Notebook
) -> Iterator[Mark]:
    for model, where, key, entries in guards.claims():
        for rows in claimed_pages(model, where, state_columns(entries), key):
            if options.over:
                return
            notes.looked_at["rows"] += len(rows)
            yield from locks.missing(list(_wanted(model, entries, rows, restorer, options)))


def _wanted(
    model: type[Model], every: list[Guarded], rows: Iterable[Row], restorer: RowRestorer, options: SweepOptions
) -> Iterator[Mark]:
    for row in rows:
        entries = claiming(every, row)
        if row.token is None and not options.requeue and not restorer.preview(model, entries, publish=False).done:
            continue  # claimable already: there is nothing to put back
        names = {lock_name(one, row.pk) for one in entries}
        known = None not in names
        if row.token is None and not known:
            continue  # nothing tells whether it is worked on
        mark = Mark(model, entries, row, tuple(name for name in names if name is not None), known)
        if not options.prefix or any(name.startswith(options.prefix) for name in mark.names):
            yield mark


def _unchanged(batch: list[Mark]) -> list[Mark]:
    """Return those whose rows have the state and the token that were seen at first."""
    groups: dict[tuple[type[Model], tuple[str, ...]], list[Mark]] = {}
    for mark in batch:
        groups.setdefault((mark.model, tuple(mark.row.states)), []).append(mark)
    still: list[Mark] = []
    for (model, columns), marks in groups.items():
        now = {row.pk: row for row in read(model, columns, [mark.row.pk for mark in marks])}
        still += [mark for mark in marks if now.get(mark.row.pk) == mark.row]
    return still


def _act(mark: Mark, locks: Locks, restorer: RowRestorer, options: SweepOptions) -> Finding:
    if not alike(mark.entries):
        return _finding(mark, Came.KEPT, "several guards claim rows like this, and put them back differently")
    if not locks.listed and (not mark.known or any(isinstance(one.locked, type) for one in mark.entries)):
        return _finding(mark, Came.KEPT, CANNOT_LIST)
    if options.dry_run:
        came = restorer.preview(mark.model, mark.entries, publish=True)
        return _finding(mark, Came.WOULD if came.done else Came.KEPT, came.why or _WHY, came)
    came = restorer.put_back(mark.model, mark.row.pk, mark.row.token or "", mark.entries, publish=True, free=mark.names)
    if came.done:
        return _finding(mark, Came.SWEPT, _WHY, came)
    return _finding(mark, Came.KEPT if came.why else Came.CHANGED, came.why or "it changed hands just now", came)


_WHY = "claimed, and no live lock has its token or its row"


def _finding(mark: Mark, came: Came, why: str, result: PutBackResult | None = None) -> Finding:
    result = result or PutBackResult(False)
    return Finding(
        kind=Kind.ABANDONED,
        came=came,
        why=why,
        name=mark.name,
        row=mark.called,
        put_back=result.done,
        published=result.published,
        unpublished=result.unpublished,
    )
