"""Claimed rows without a live lock: their workers died, and their locks expired or were lost."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

from django.db.models import Model

from django_tasklock.backends.contract.locks import LockStore
from django_tasklock.guards.guard import Guarded
from django_tasklock.guards.rows import Row, claimed_pages, read, state_columns
from django_tasklock.operations.guarded_rows import alike, lock_name
from django_tasklock.operations.sweep.guarded import Guards, claiming
from django_tasklock.operations.sweep.options import SweepOptions
from django_tasklock.operations.sweep.putback import PutBackResult, RowRestorer
from django_tasklock.operations.sweep.report import Came, Finding, Kind, SweepLog
from django_tasklock.operations.sweep.stream import live_locks, second_look

CANNOT_LIST = "the store cannot list its locks, so one of another name cannot be ruled out"


class Suspect(NamedTuple):
    """A claimed row found in the first pass."""

    model: type[Model]
    entries: list[Guarded]
    row: Row
    names: tuple[str, ...]
    """The names of the row's locks that depend on the primary key alone."""
    known: bool
    """Whether these are all the locks that tasks take for the row by default."""

    @property
    def name(self) -> str:
        """The name of the row's lock; empty if it is unknown or one of several."""
        return self.names[0] if self.known and len(self.names) == 1 else ""

    @property
    def key(self) -> tuple[type[Model], Any]:
        """The model and the primary key."""
        return self.model, self.row.pk

    @property
    def called(self) -> str:
        """The row as text."""
        return f"{self.model._meta.label_lower}:{self.row.pk}"


@dataclass(frozen=True, slots=True)
class LiveLocks:
    """The live locks, searched for those that belong to a row."""

    backend: LockStore
    guards: Guards
    listed: bool
    """Whether the store can list them."""

    def has_named(self, suspect: Suspect) -> bool:
        """Return whether a lock of one of the row's names is held, whatever its holder."""
        return any(self.backend.get(name) is not None for name in suspect.names)

    def unlocked(self, suspects: list[Suspect]) -> list[Suspect]:
        """Return the suspects to which no live lock belongs: neither by name, nor by token, nor by row."""
        left = [suspect for suspect in suspects if not self.has_named(suspect)]
        if not left or not self.listed:
            return left
        tokens = {suspect.row.token for suspect in left if suspect.row.token}
        rows = {suspect.key for suspect in left}
        met: set[str] = set()
        worked_on: set[tuple[type[Model], Any]] = set()
        for page in live_locks(self.backend):
            met |= {record.token for record in page if record.token in tokens}
            worked_on |= rows.intersection(map(self.guards.row_of, page))
        return [suspect for suspect in left if suspect.row.token not in met and suspect.key not in worked_on]


@dataclass(frozen=True, slots=True)
class RowSweep:
    """The part of a sweep that checks claimed rows."""

    locks: LiveLocks
    guards: Guards
    restorer: RowRestorer
    options: SweepOptions
    notes: SweepLog

    def run(self) -> None:
        """Check twice, and act on what the second pass confirms.

        A row is read before its lock: a holder acquires the lock before it claims the row, and releases it after it has
        closed the row.
        """
        for batch in second_look(self._suspects(), self.options.pause):
            still = _unchanged(batch)
            abandoned = {suspect.called for suspect in self.locks.unlocked(still)}
            same = {suspect.called for suspect in still}
            for suspect in batch:
                if suspect.called not in same:
                    self.notes.add(_finding(suspect, Came.CHANGED, "the row was no longer so at the second check"))
                elif suspect.called not in abandoned:
                    self.notes.add(_finding(suspect, Came.CHANGED, "it had a live lock at the second look"))
                else:
                    with self.notes.acting(suspect.name or suspect.called, Kind.ABANDONED, _WHY):
                        self.notes.add(self._act(suspect))
            self.notes.write(self.options.by)

    def _suspects(self) -> Iterator[Suspect]:
        for model, where, key, entries in self.guards.claims():
            for rows in claimed_pages(model, where, state_columns(entries), key):
                if self.options.over:
                    return
                self.notes.looked_at["rows"] += len(rows)
                yield from self.locks.unlocked(list(self._wanted(model, entries, rows)))

    def _wanted(self, model: type[Model], every: list[Guarded], rows: Iterable[Row]) -> Iterator[Suspect]:
        options = self.options
        for row in rows:
            entries = claiming(every, row)
            if row.token is None and not (options.requeue or self.restorer.preview(model, entries, publish=False).done):
                continue  # claimable already: there is nothing to restore
            names = {lock_name(one, row.pk) for one in entries}
            known = None not in names
            if row.token is None and not known:
                continue  # nothing tells whether a task works on it
            suspect = Suspect(model, entries, row, tuple(name for name in names if name is not None), known)
            if not options.prefix or any(name.startswith(options.prefix) for name in suspect.names):
                yield suspect

    def _act(self, suspect: Suspect) -> Finding:
        if not alike(suspect.entries):
            return _finding(suspect, Came.KEPT, "several guards claim rows like this, and put them back differently")
        of_a_class = any(isinstance(one.locked, type) for one in suspect.entries)
        if not self.locks.listed and (not suspect.known or of_a_class):
            return _finding(suspect, Came.KEPT, CANNOT_LIST)
        if self.options.dry_run:
            came = self.restorer.preview(suspect.model, suspect.entries, publish=True)
            return _finding(suspect, Came.WOULD if came.done else Came.KEPT, came.why or _WHY, came)
        came = self.restorer.put_back(
            suspect.model, suspect.row.pk, suspect.row.token or "", suspect.entries, publish=True, free=suspect.names
        )
        if came.done:
            return _finding(suspect, Came.SWEPT, _WHY, came)
        return _finding(suspect, Came.KEPT if came.why else Came.CHANGED, came.why or "it changed hands just now", came)


def _unchanged(batch: list[Suspect]) -> list[Suspect]:
    """Return the suspects whose rows still have the state and the token of the first pass."""
    groups: dict[tuple[type[Model], tuple[str, ...]], list[Suspect]] = {}
    for suspect in batch:
        groups.setdefault((suspect.model, tuple(suspect.row.states)), []).append(suspect)
    still: list[Suspect] = []
    for (model, columns), suspects in groups.items():
        now = {row.pk: row for row in read(model, columns, [suspect.row.pk for suspect in suspects])}
        still += [suspect for suspect in suspects if now.get(suspect.row.pk) == suspect.row]
    return still


_WHY = "claimed, and no live lock has its token or its row"


def _finding(suspect: Suspect, came: Came, why: str, result: PutBackResult | None = None) -> Finding:
    result = result or PutBackResult(False)
    return Finding(
        kind=Kind.ABANDONED,
        came=came,
        why=why,
        name=suspect.name,
        row=suspect.called,
        put_back=result.done,
        published=result.published,
        unpublished=result.unpublished,
    )
