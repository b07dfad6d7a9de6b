"""Claimed rows without a live lock: their workers died, and their locks expired or were lost."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from django.db.models import Model

from django_tasklock.backends.contract.locks import LockStore
from django_tasklock.guards.guard import Guarded
from django_tasklock.guards.keys import PK
from django_tasklock.guards.rows import Row, claimed_pages, columns_of, read
from django_tasklock.operations.guarded_rows import RowKey, are_equivalent, lock_name
from django_tasklock.operations.sweep.guarded import Guards, find_claiming_guards
from django_tasklock.operations.sweep.options import SweepOptions
from django_tasklock.operations.sweep.report import Finding, FindingOutcome, Kind, SweepLog
from django_tasklock.operations.sweep.restoring import RestoreResult, RowRestorer
from django_tasklock.operations.sweep.stream import delayed_batches, live_locks

CANNOT_LIST = "the store cannot list its locks, so one of another name cannot be ruled out"


class Suspect(NamedTuple):
    """A claimed row found in the first pass."""

    model: type[Model]
    guards: list[Guarded]
    row: Row
    names: tuple[str, ...]
    """The names of the row's locks that depend on its key alone."""
    names_complete: bool
    """Whether these are all the locks that tasks take for the row by default."""

    @property
    def name(self) -> str:
        """The name of the row's lock; empty if it is unknown or one of several."""
        return self.names[0] if self.names_complete and len(self.names) == 1 else ""

    @property
    def keys(self) -> set[RowKey]:
        """The keys by which holders of its locks may name the row."""
        found = {RowKey(self.model, one.lookup, self.row.key_for(one)) for one in self.guards}
        return {RowKey(self.model, PK, self.row.pk), *found}

    @property
    def label(self) -> str:
        """The row as text."""
        return f"{self.model._meta.label_lower}:{self.row.pk}"


@dataclass(frozen=True, slots=True)
class LiveLocks:
    """The live locks, searched for those that belong to a row."""

    backend: LockStore
    guards: Guards
    can_list: bool
    """Whether the store can list them."""

    def is_locked_by_name(self, suspect: Suspect) -> bool:
        """Return whether a lock of one of the row's names is held, whatever its holder."""
        return any(self.backend.get(name) is not None for name in suspect.names)

    def without_lock(self, suspects: list[Suspect]) -> list[Suspect]:
        """Return the suspects to which no live lock belongs: neither by name, nor by token, nor by row."""
        remaining = [suspect for suspect in suspects if not self.is_locked_by_name(suspect)]
        if not remaining or not self.can_list:
            return remaining
        tokens = {suspect.row.token for suspect in remaining if suspect.row.token}
        rows = set[RowKey]().union(*(suspect.keys for suspect in remaining))
        found_tokens: set[str] = set()
        locked_rows: set[RowKey | None] = set()
        for page in live_locks(self.backend):
            found_tokens |= {record.token for record in page if record.token in tokens}
            locked_rows |= rows.intersection(map(self.guards.resolve_guarded_row, page))
        return [
            suspect
            for suspect in remaining
            if suspect.row.token not in found_tokens and suspect.keys.isdisjoint(locked_rows)
        ]


@dataclass(frozen=True, slots=True)
class RowSweep:
    """The part of a sweep that checks claimed rows."""

    locks: LiveLocks
    guards: Guards
    restorer: RowRestorer
    options: SweepOptions
    log: SweepLog

    def run(self) -> None:
        """Check twice, and act on what the second pass confirms.

        A row is read before its lock: a holder acquires the lock before it claims the row, and releases it after it has
        closed the row.
        """
        for batch in delayed_batches(self._find_suspects(), self.options.pause):
            unchanged = _select_unchanged(batch)
            abandoned = {suspect.label for suspect in self.locks.without_lock(unchanged)}
            unchanged_labels = {suspect.label for suspect in unchanged}
            for suspect in batch:
                if suspect.label not in unchanged_labels:
                    self.log.add(
                        _make_finding(suspect, FindingOutcome.CHANGED, "the row was no longer so at the second check")
                    )
                elif suspect.label not in abandoned:
                    self.log.add(
                        _make_finding(suspect, FindingOutcome.CHANGED, "it had a live lock at the second check")
                    )
                else:
                    with self.log.audit_interruption(suspect.name or suspect.label, Kind.ABANDONED, _EVIDENCE):
                        self.log.add(self._act(suspect))
            self.log.write_audit_entries(self.options.by)

    def _find_suspects(self) -> Iterator[Suspect]:
        for model, where, key, guards in self.guards.claim_queries():
            for rows in claimed_pages(model, where, columns_of(guards), key):
                if self.options.timed_out:
                    return
                self.log.looked_at["rows"] += len(rows)
                yield from self.locks.without_lock(list(self._select(model, guards, rows)))

    def _select(self, model: type[Model], guards: list[Guarded], rows: Iterable[Row]) -> Iterator[Suspect]:
        options = self.options
        for row in rows:
            guards = find_claiming_guards(guards, row)
            if row.token is None and not (options.requeue or self.restorer.preview(model, guards, publish=False).done):
                continue  # claimable already: there is nothing to restore
            names = {lock_name(one, row.key_for(one)) for one in guards}
            names_complete = None not in names
            if row.token is None and not names_complete:
                continue  # nothing tells whether a task works on it
            suspect = Suspect(model, guards, row, tuple(name for name in names if name is not None), names_complete)
            if not options.prefix or any(name.startswith(options.prefix) for name in suspect.names):
                yield suspect

    def _act(self, suspect: Suspect) -> Finding:
        if not are_equivalent(suspect.guards):
            return _make_finding(
                suspect, FindingOutcome.KEPT, "several guards claim rows like this, and put them back differently"
            )
        on_task_class = any(isinstance(one.locked, type) for one in suspect.guards)
        if not self.locks.can_list and (not suspect.names_complete or on_task_class):
            return _make_finding(suspect, FindingOutcome.KEPT, CANNOT_LIST)
        if self.options.dry_run:
            restored = self.restorer.preview(suspect.model, suspect.guards, publish=True)
            return _make_finding(
                suspect,
                FindingOutcome.WOULD if restored.done else FindingOutcome.KEPT,
                restored.why or _EVIDENCE,
                restored,
            )
        restored = self.restorer.restore(
            suspect.model,
            suspect.row,
            suspect.row.token or "",
            suspect.guards,
            publish=True,
            free_locks=suspect.names,
        )
        if restored.done:
            return _make_finding(suspect, FindingOutcome.SWEPT, _EVIDENCE, restored)
        return _make_finding(
            suspect,
            FindingOutcome.KEPT if restored.why else FindingOutcome.CHANGED,
            restored.why or "it changed hands just now",
            restored,
        )


def _select_unchanged(batch: list[Suspect]) -> list[Suspect]:
    """Return the suspects whose rows still have the state and the token of the first pass."""
    groups: dict[tuple[type[Model], tuple[str, ...]], list[Suspect]] = {}
    for suspect in batch:
        groups.setdefault((suspect.model, tuple(suspect.row.values)), []).append(suspect)
    unchanged: list[Suspect] = []
    for (model, columns), suspects in groups.items():
        now = {row.pk: row for row in read(model, columns, [suspect.row.pk for suspect in suspects])}
        unchanged += [suspect for suspect in suspects if now.get(suspect.row.pk) == suspect.row]
    return unchanged


_EVIDENCE = "claimed, and no live lock has its token or its row"


def _make_finding(suspect: Suspect, came: FindingOutcome, why: str, result: RestoreResult | None = None) -> Finding:
    result = result or RestoreResult(False)
    return Finding(
        kind=Kind.ABANDONED,
        came=came,
        why=why,
        name=suspect.name,
        row=suspect.label,
        put_back=result.done,
        published=result.published,
        unpublished=result.unpublished,
    )
