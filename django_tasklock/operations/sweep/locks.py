"""Held locks: those of dead processes, and those without expiry."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

from django.db.models import Model

from django_tasklock.backends.contract import lists
from django_tasklock.backends.contract.stores import LockStore
from django_tasklock.conf import get_settings
from django_tasklock.guards.guard import Guarded
from django_tasklock.guards.rows import Row
from django_tasklock.locks import holder as holders
from django_tasklock.operations.locks.release import delete_if_held
from django_tasklock.operations.sweep.guards import Guards, NamedRow
from django_tasklock.operations.sweep.options import SweepOptions
from django_tasklock.operations.sweep.report import Finding, FindingOutcome, Kind, Suspect, SweepLog
from django_tasklock.operations.sweep.restoring import RestoreResult, RowRestorer
from django_tasklock.operations.sweep.stream import batches
from django_tasklock.types import Record

MIN_RENEWAL = 1000
"""Milliseconds by which a lease's end must move to count as renewed: in Redis, keys and index differ by less."""

ROWS_AT_ONCE = 1000
"""Suspects whose rows are read together."""


class Held(NamedTuple):
    """A held lock, and the row that it names."""

    record: Record
    named_row: NamedRow | None = None
    """Read at the second look only."""


class ClaimedRow(NamedTuple):
    """The row of a lock, claimed by the lock's holder with this guard."""

    model: type[Model]
    row: Row
    guard: Guarded


@dataclass(frozen=True, slots=True)
class LockSweep:
    """The part of a sweep that checks held locks."""

    backend: LockStore
    guards: Guards
    restorer: RowRestorer
    options: SweepOptions
    log: SweepLog

    def find(self) -> Iterator[Suspect[Held]]:
        """Yield locks of dead processes and those without expiry."""
        for page in lists.each(self.backend):
            if self.options.timed_out:
                return
            self.log.looked_at["locks"] += len(page)
            yield from filter(None, map(suspect_of, filter(self.options.matches, page)))

    def confirm(self, batch: list[Suspect[Held]]) -> Iterator[tuple[Suspect[Held], Suspect[Held] | None]]:
        """Yield each suspect with its present state, and the row of its lock."""
        for suspects in batches(batch, ROWS_AT_ONCE):
            records = [self.backend.get(suspect.found.record.name) for suspect in suspects]
            named_rows = self.guards.read_rows(record for record in records if record is not None)
            for suspect, record in zip(suspects, records, strict=True):
                current = None if record is None else suspect_of(record)
                if record is None or current is None or not _is_unchanged(suspect, current):
                    yield suspect, None
                else:
                    yield suspect, replace(current, found=Held(record, named_rows.get(current.row)))

    def act(self, suspect: Suspect[Held]) -> Finding:
        """Give a lock a TTL; or release it, and restore its row."""
        if suspect.kind is Kind.NO_EXPIRY:
            return self._set_expiry(suspect)
        record, named_row = suspect.found
        claimed = None if named_row is None else self._find_claimed_row(named_row, record)
        if self.options.dry_run:
            restored = None if claimed is None else self.restorer.preview(claimed.model, [claimed.guard])
            return _finding(suspect, FindingOutcome.WOULD, restored)
        return self._release(suspect, record, claimed)

    def _set_expiry(self, suspect: Suspect[Held]) -> Finding:
        """Give a lock a TTL: the rest of its timeout, at least a lease; a foreign value gets the default timeout."""
        record = suspect.found.record
        hold, lease = get_settings().default_spans
        ttl = hold if not record.token else max(record.until - record.now, lease)
        why = f"{suspect.why}: it ends in {ttl / 1000:.0f} s unless renewed"
        if self.options.dry_run:
            return suspect.finding(FindingOutcome.WOULD, why)
        done = self.backend.set_expiry(record.name, record.token, ttl)
        return suspect.finding(FindingOutcome.SWEPT if done else FindingOutcome.CHANGED, why)

    def _find_claimed_row(self, named_row: NamedRow, record: Record) -> ClaimedRow | None:
        """Return the row that this lock's holder has claimed; ``None`` if there is no row to restore."""
        row = named_row.row
        if row is None or (row.token is not None and row.token != record.token):
            return None
        guard = self.guards.find_guard(named_row, record, self.restorer.publisher.task_of)
        if guard is None or (row.token is None and not row.claimed_by(guard.guard)):
            return None
        return ClaimedRow(named_row.model, row, guard)

    def _release(self, suspect: Suspect[Held], record: Record, claimed: ClaimedRow | None) -> Finding:
        """Restore the row, then release the lock; in reverse order if the task is to be published.

        Its worker must find the lock free, and a sweep that is killed in between leaves a claimed row without a lock,
        which the next sweep finds.
        """
        release_first, removed, restored = self.options.requeue, False, RestoreResult(False)
        if release_first:
            removed = bool(delete_if_held(record))
        if claimed is not None and (removed or not release_first):
            free_locks = [record.name] if release_first else []
            restored = self.restorer.restore(
                claimed.model, claimed.row, record.token, [claimed.guard], free_locks=free_locks
            )
        if not release_first:
            removed = bool(delete_if_held(record))
        if restored.done or (removed and (claimed is None or restored.why)):
            return _finding(suspect, FindingOutcome.SWEPT, restored)
        return suspect.finding(FindingOutcome.CHANGED, "another process was first just now", restored)


def suspect_of(record: Record) -> Suspect[Held] | None:
    """Return the lock as a suspect, with the evidence; ``None`` if nothing is wrong with it, as far as is known."""
    holder = record.holder
    if record.token and holders.alive(holder) is False:
        kind, why = Kind.DEAD, f"process {holder.pid} on this machine is dead"
    elif record.ttl is None:
        kind, why = Kind.NO_EXPIRY, "nothing but a release would end it"
    else:
        return None
    return Suspect(kind, why, Held(record), record.name, holder.row, str(holder))


def _is_unchanged(suspect: Suspect[Held], current: Suspect[Held]) -> bool:
    before, now = suspect.found.record, current.found.record
    if now.token != before.token or current.kind is not suspect.kind:
        return False
    return suspect.kind is not Kind.DEAD or now.lease_ends <= before.lease_ends + MIN_RENEWAL  # nobody renews it


def _finding(suspect: Suspect[Held], came: FindingOutcome, restored: RestoreResult | None) -> Finding:
    """Return the finding, with the reason why its row was not restored."""
    why = f"{suspect.why}; {restored.why}" if restored and restored.why else suspect.why
    return suspect.finding(came, why, restored)
