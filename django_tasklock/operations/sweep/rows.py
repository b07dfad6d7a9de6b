"""Claimed rows without a live lock: their workers died, and their locks expired or were lost."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from django.db.models import Model

from django_tasklock.backends.contract import lists
from django_tasklock.backends.contract.stores import LockStore
from django_tasklock.guards.guard import Guarded
from django_tasklock.guards.keys import PK
from django_tasklock.guards.rows import Row, claimed_pages, columns_of, read
from django_tasklock.operations.guarded_rows import RowKey, are_equivalent, lock_name
from django_tasklock.operations.sweep.guards import Guards, claimable_state, find_claiming_guards
from django_tasklock.operations.sweep.options import SweepOptions
from django_tasklock.operations.sweep.report import Finding, FindingOutcome, Kind, Suspect, SweepLog
from django_tasklock.operations.sweep.restoring import RowRestorer
from django_tasklock.operations.sweep.stream import BATCH_SIZE, batches

AMBIGUOUS = "several guards claim rows like this, and put them back differently"
CANNOT_LIST = "the store cannot list its locks, so one of another name cannot be ruled out"


class Claimed(NamedTuple):
    """A claimed row."""

    model: type[Model]
    guards: list[Guarded]
    row: Row
    names: tuple[str, ...]
    """The names of the row's locks that depend on its key alone."""
    names_complete: bool
    """Whether these are all the locks that tasks take for the row by default."""

    @property
    def keys(self) -> set[RowKey]:
        """The keys by which holders of its locks may name the row."""
        found = {RowKey(self.model, one.lookup, self.row.key_for(one)) for one in self.guards}
        return {RowKey(self.model, PK, self.row.pk), *found}


@dataclass(frozen=True, slots=True)
class RowSweep:
    """The part of a sweep that checks claimed rows.

    A row is read before its lock: a holder acquires the lock before it claims the row, and releases it after it has
    closed the row.
    """

    backend: LockStore
    can_list: bool
    """Whether the store can list its locks."""
    guards: Guards
    restorer: RowRestorer
    options: SweepOptions
    log: SweepLog

    def find(self) -> Iterator[Suspect[Claimed]]:
        """Yield claimed rows without a live lock."""
        for batch in batches(self._claimed_rows(), BATCH_SIZE):
            for claimed in self._without_lock(batch):
                name = claimed.names[0] if claimed.names_complete and len(claimed.names) == 1 else ""
                label = f"{claimed.model._meta.label_lower}:{claimed.row.pk}"
                yield Suspect(
                    Kind.ABANDONED, "claimed, and no live lock has its token or its row", claimed, name, label
                )

    def _claimed_rows(self) -> Iterator[Claimed]:
        """Yield the claimed rows that can be judged, and whose locks by name are free."""
        for model, where, key, guards in self.guards.claim_queries():
            for rows in claimed_pages(model, where, columns_of(guards), key):
                if self.options.timed_out:
                    return
                self.log.looked_at["rows"] += len(rows)
                yield from filter(self._is_free_by_name, self.select(model, guards, rows))

    def select(self, model: type[Model], guards: list[Guarded], rows: Iterable[Row]) -> Iterator[Claimed]:
        """Yield those of the rows that can be judged and match the options."""
        options = self.options
        for row in rows:
            claiming = find_claiming_guards(guards, row)
            if row.token is None and not options.requeue and not _is_restorable(claiming):
                continue  # claimable already: there is nothing to restore
            names = {lock_name(one, row.key_for(one)) for one in claiming}
            names_complete = None not in names
            if row.token is None and not names_complete:
                continue  # nothing tells whether a task works on it
            claimed = Claimed(model, claiming, row, tuple(name for name in names if name is not None), names_complete)
            if not options.prefix or any(name.startswith(options.prefix) for name in claimed.names):
                yield claimed

    def confirm(self, batch: list[Suspect[Claimed]]) -> Iterator[tuple[Suspect[Claimed], Suspect[Claimed] | None]]:
        """Yield each suspect; with ``None`` if its row has changed, or it has a live lock now."""
        unchanged = _select_unchanged([suspect.found for suspect in batch])
        abandoned = self._without_lock([one for one in unchanged if self._is_free_by_name(one)])
        confirmed = {(one.model, one.row.pk) for one in abandoned}
        for suspect in batch:
            yield suspect, suspect if (suspect.found.model, suspect.found.row.pk) in confirmed else None

    def _is_free_by_name(self, claimed: Claimed) -> bool:
        """Return whether no lock of one of the row's names is held, whatever its holder."""
        return all(self.backend.get(name) is None for name in claimed.names)

    def _without_lock(self, rows: list[Claimed]) -> list[Claimed]:
        """Return the rows to which no live lock belongs, by its token or its row. It reads the whole index."""
        if not rows or not self.can_list:
            return rows
        tokens = {one.row.token for one in rows if one.row.token}
        keys = set[RowKey]().union(*(one.keys for one in rows))
        live_tokens: set[str] = set()
        locked_rows: set[RowKey | None] = set()
        for page in lists.each(self.backend):
            live_tokens |= {record.token for record in page if record.token in tokens}
            locked_rows |= keys.intersection(map(self.guards.resolve_guarded_row, page))
        return [one for one in rows if one.row.token not in live_tokens and one.keys.isdisjoint(locked_rows)]

    def act(self, suspect: Suspect[Claimed]) -> Finding:
        """Restore a row, if its guards agree how, and no lock of another name can be its own."""
        model, guards, row, names, names_complete = suspect.found
        if not are_equivalent(guards):
            return suspect.finding(FindingOutcome.KEPT, AMBIGUOUS)
        on_task_class = any(isinstance(one.locked, type) for one in guards)
        if not self.can_list and (not names_complete or on_task_class):
            return suspect.finding(FindingOutcome.KEPT, CANNOT_LIST)
        if self.options.dry_run:
            restored = self.restorer.preview(model, guards)
            came = FindingOutcome.WOULD if restored.done else FindingOutcome.KEPT
            return suspect.finding(came, restored.why, restored)
        restored = self.restorer.restore(model, row, row.token or "", guards, free_locks=names)
        if restored.done:
            return suspect.finding(FindingOutcome.SWEPT, restored=restored)
        if restored.why:
            return suspect.finding(FindingOutcome.KEPT, restored.why, restored)
        return suspect.finding(FindingOutcome.CHANGED, "it changed hands just now", restored)


def _is_restorable(guards: list[Guarded]) -> bool:
    """Return whether a row without a token can be told from one that was restored."""
    return claimable_state(guards[0].guard, has_token=False, published=False) is not None


def _select_unchanged(rows: list[Claimed]) -> list[Claimed]:
    """Return the rows that still have the state and the token of the first look."""
    groups: dict[tuple[type[Model], tuple[str, ...]], list[Claimed]] = {}
    for one in rows:
        groups.setdefault((one.model, tuple(one.row.values)), []).append(one)
    unchanged: list[Claimed] = []
    for (model, columns), group in groups.items():
        now = {row.pk: row for row in read(model, columns, [one.row.pk for one in group])}
        unchanged += [one for one in group if now.get(one.row.pk) == one.row]
    return unchanged
