"""Held locks: without expiry, overdue, of dead processes, of finished rows, and of rows with another claim."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from django.db.models import Model

from django_tasklock.backends.contract.locks import LockStore
from django_tasklock.backends.contract.queries import Query
from django_tasklock.conf import get_settings
from django_tasklock.guards.guard import Guarded
from django_tasklock.guards.rows import Row, state_columns
from django_tasklock.locks import holder as holders
from django_tasklock.operations.locks.release import delete_if_held
from django_tasklock.operations.sweep.guarded import Guards, NamedRow
from django_tasklock.operations.sweep.options import SweepOptions
from django_tasklock.operations.sweep.report import Finding, FindingOutcome, Kind, SweepLog
from django_tasklock.operations.sweep.restoring import RestoreResult, RowRestorer
from django_tasklock.operations.sweep.stream import PAGE_SIZE, delayed_batches, live_locks, read_pages
from django_tasklock.types import Record

MIN_RENEWAL = 1000
"""Milliseconds by which a lease's end must move to count as renewed: in Redis, keys and index differ by less."""


class Suspect(NamedTuple):
    """A lock found in the first pass."""

    kind: Kind
    why: str
    record: Record


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

    def run(self) -> None:
        """Check twice, and act on what the second pass confirms."""
        for batch in delayed_batches(self._find_suspects(), self.options.pause):
            for start in range(0, len(batch), PAGE_SIZE):
                self._confirm_and_act(batch[start : start + PAGE_SIZE])

    def _find_suspects(self) -> Iterator[Suspect]:
        """Yield the suspects of the first pass: locks without expiry, by an index of their own, then all held locks."""
        without_expiry: set[str] = set()
        if self.backend.counts().no_expiry:
            for page in read_pages(self.backend, Query("no_expiry", limit=PAGE_SIZE)):
                if self.options.timed_out:
                    return
                without_expiry |= {record.name for record in page}
                yield from self._check_page(page)
        for page in live_locks(self.backend):
            if self.options.timed_out:
                return
            self.log.looked_at["locks"] += len(page)
            yield from self._check_page([record for record in page if record.name not in without_expiry])

    def _check_page(self, page: list[Record]) -> Iterator[Suspect]:
        wanted = [record for record in page if self.options.matches(record)]
        named_rows = self.guards.read_rows(wanted)
        for record in wanted:
            found = classify(record, named_rows.get(record.holder.row), self.guards)
            if found is not None:
                yield Suspect(*found, record)

    def _confirm_and_act(self, batch: list[Suspect]) -> None:
        """Check each suspect again, and act if nothing has changed."""
        records = [self.backend.get(suspect.record.name) for suspect in batch]
        named_rows = self.guards.read_rows(record for record in records if record is not None)
        for suspect, current in zip(batch, records, strict=True):
            named_row = None if current is None else named_rows.get(current.holder.row)
            if current is None or not self._is_unchanged(suspect, current, named_row):
                self.log.add(_make_finding(suspect, FindingOutcome.CHANGED, "it was no longer so at the second check"))
            else:
                with self.log.audit_interruption(current.name, suspect.kind, suspect.why):
                    self.log.add(self._act(suspect, current, named_row))
        self.log.write_audit_entries(self.options.by)

    def _is_unchanged(self, suspect: Suspect, current: Record, named_row: NamedRow | None) -> bool:
        if current.token != suspect.record.token:
            return False
        found = classify(current, named_row, self.guards)
        if found is None or found[0] is not suspect.kind:
            return False
        if suspect.kind in (Kind.DEAD, Kind.FINISHED) and current.lease_ends > suspect.record.lease_ends + MIN_RENEWAL:
            return False  # its holder renews it
        if suspect.kind in (Kind.DIFFERS, Kind.FINISHED):  # lock, row, lock: so both states are of one moment
            after = self.backend.get(current.name)
            return after is not None and after.token == current.token
        return True

    def _act(self, suspect: Suspect, current: Record, named_row: NamedRow | None) -> Finding:
        alive = holders.alive(current.holder)
        if suspect.kind is Kind.DIFFERS:
            return _make_finding(suspect, FindingOutcome.KEPT, suspect.why)
        if suspect.kind is Kind.FINISHED and (alive is True or current.holder.kept):
            why = "its holder's process runs" if alive else "it is kept for a message that is on its way"
            return _make_finding(suspect, FindingOutcome.KEPT, f"{suspect.why}; but {why}")
        if suspect.kind is Kind.NO_EXPIRY:
            return self._set_expiry(suspect, current)
        claimed = (
            None if suspect.kind is Kind.FINISHED or named_row is None else self._find_claimed_row(named_row, current)
        )
        if self.options.dry_run:
            restored = RestoreResult(False)
            if claimed is not None:
                restored = self.restorer.preview(claimed.model, [claimed.guard], publish=alive is not True)
            return _make_finding(suspect, FindingOutcome.WOULD, suspect.why, restored)
        return self.release(suspect, current, claimed, alive)

    def _set_expiry(self, suspect: Suspect, current: Record) -> Finding:
        """Give a lock without expiry a TTL."""
        ttl = _remaining_time(current)
        why = f"{suspect.why}: it ends in {ttl / 1000:.0f} s unless renewed"
        if self.options.dry_run:
            return _make_finding(suspect, FindingOutcome.WOULD, why)
        done = self.backend.set_expiry(current.name, current.token, ttl)
        return _make_finding(suspect, FindingOutcome.SWEPT if done else FindingOutcome.CHANGED, why)

    def _find_claimed_row(self, named_row: NamedRow, record: Record) -> ClaimedRow | None:
        """Return the row that this lock's holder has claimed; ``None`` if there is no row to restore."""
        row = named_row.row
        if row is None or (row.token is not None and row.token != record.token):
            return None
        guard = self.guards.find_guard(named_row, record, self.restorer.publisher.task_of)
        if guard is None or (row.token is None and not row.claimed_by(guard.guard)):
            return None
        return ClaimedRow(named_row.model, row, guard)

    def release(self, suspect: Suspect, current: Record, claimed: ClaimedRow | None, alive: bool | None) -> Finding:
        """Restore the row, then release the lock; in reverse order if the task is to be published.

        Its worker must find the lock free, and a sweep that is killed in between leaves a claimed row without a lock,
        which the next sweep finds.
        """
        restored = RestoreResult(False)
        release_first = self.options.requeue and alive is not True
        removed = bool(delete_if_held(current)) if release_first else False
        if claimed is not None and (removed or not release_first):
            restored = self.restorer.restore(
                claimed.model,
                claimed.row,
                current.token,
                [claimed.guard],
                publish=alive is not True,
                free_locks=[current.name] if release_first else [],
            )
        if not release_first:
            removed = bool(delete_if_held(current))
        if restored.done or (removed and (claimed is None or restored.why)):
            return _make_finding(suspect, FindingOutcome.SWEPT, suspect.why, restored)
        return _make_finding(suspect, FindingOutcome.CHANGED, "another process was first just now", restored)


def classify(record: Record, named_row: NamedRow | None, guards: Guards) -> tuple[Kind, str] | None:
    """Return the class of a lock and the evidence; ``None`` if nothing is wrong with it, as far as is known."""
    holder = record.holder
    if record.token and not holder.kept and holders.alive(holder) is False:
        return Kind.DEAD, f"process {holder.pid} on this machine is dead"
    if record.ttl is None:
        return Kind.NO_EXPIRY, "nothing but a release would end it"
    if record.token and not holder.kept and record.until < record.now:
        return Kind.OVERDUE, f"its timeout ended {(record.now - record.until) / 1000:.0f} s ago"
    if named_row is None or named_row.row is None or named_row.row.token is None:
        return None
    if named_row.row.token == record.token:
        return None
    if named_row.row.token:
        return Kind.DIFFERS, "its row is claimed by another token: only the last claim may write to it"
    if not guards.is_claimable(named_row):
        columns = state_columns(guards.by_model[named_row.model])
        states = ", ".join(f"{named_row.row.values[column]!r}" for column in columns)
        return Kind.FINISHED, f"its row is not claimed any more, and {states}"
    return None  # about to be claimed, or just released


def _remaining_time(record: Record) -> int:
    """Return milliseconds: the rest of the timeout, at least a lease; for a foreign value the default timeout."""
    hold, lease = get_settings().default_spans
    return hold if not record.token else max(record.until - record.now, lease)


def _make_finding(suspect: Suspect, came: FindingOutcome, why: str, result: RestoreResult | None = None) -> Finding:
    result = result or RestoreResult(False)
    return Finding(
        kind=suspect.kind,
        came=came,
        why=f"{why}; {result.why}" if result.why else why,
        name=suspect.record.name,
        row=suspect.record.holder.row,
        holder=str(suspect.record.holder),
        put_back=result.done,
        published=result.published,
        unpublished=result.unpublished,
    )
