"""Held locks: without expiry, overdue, of dead processes, of finished rows, and of rows with another claim."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from django_tasklock.backends.contract.locks import LockStore
from django_tasklock.backends.contract.queries import Query
from django_tasklock.conf import get_settings
from django_tasklock.guards.guard import Guarded
from django_tasklock.locks import holder as holders
from django_tasklock.operations.locks.release import take_away
from django_tasklock.operations.sweep.guarded import Guards, Side
from django_tasklock.operations.sweep.options import SweepOptions
from django_tasklock.operations.sweep.putback import PutBackResult, RowRestorer
from django_tasklock.operations.sweep.report import Came, Finding, Kind, SweepLog
from django_tasklock.operations.sweep.stream import PAGE, live_locks, of_kind, second_look
from django_tasklock.types import Record

RENEWED = 20
"""Milliseconds by which a lease's end must move to count as renewed, because stores round."""


class Suspect(NamedTuple):
    """A lock found in the first pass."""

    kind: Kind
    why: str
    record: Record


class ClaimedRow(NamedTuple):
    """The row of a lock, claimed by the lock's holder with this guard."""

    side: Side
    guard: Guarded


@dataclass(frozen=True, slots=True)
class LockSweep:
    """The part of a sweep that checks held locks."""

    backend: LockStore
    guards: Guards
    restorer: RowRestorer
    options: SweepOptions
    notes: SweepLog

    def run(self) -> None:
        """Check twice, and act on what the second pass confirms."""
        for batch in second_look(self._suspects(), self.options.pause):
            for start in range(0, len(batch), PAGE):
                self._again(batch[start : start + PAGE])

    def _suspects(self) -> Iterator[Suspect]:
        """Yield the suspects of the first pass: locks without expiry, by an index of their own, then all held locks."""
        endless: set[str] = set()
        if self.backend.counts().no_expiry:
            for page in of_kind(self.backend, Query("no_expiry", limit=PAGE)):
                if self.options.over:
                    return
                endless |= {record.name for record in page}
                yield from self._judged(page)
        for page in live_locks(self.backend):
            if self.options.over:
                return
            self.notes.looked_at["locks"] += len(page)
            yield from self._judged([record for record in page if record.name not in endless])

    def _judged(self, page: list[Record]) -> Iterator[Suspect]:
        wanted = [record for record in page if self.options.wants(record)]
        sides = self.guards.sides(wanted)
        for record in wanted:
            found = judge(record, sides.get(record.holder.row), self.guards)
            if found is not None:
                yield Suspect(*found, record)

    def _again(self, batch: list[Suspect]) -> None:
        """Check each suspect again, and act if nothing has changed."""
        seen = [self.backend.get(suspect.record.name) for suspect in batch]
        sides = self.guards.sides(record for record in seen if record is not None)
        for suspect, now in zip(batch, seen, strict=True):
            side = None if now is None else sides.get(now.holder.row)
            if now is None or not self._still(suspect, now, side):
                self.notes.add(_finding(suspect, Came.CHANGED, "it was no longer so at the second check"))
            else:
                with self.notes.acting(now.name, suspect.kind, suspect.why):
                    self.notes.add(self._act(suspect, now, side))
        self.notes.write(self.options.by)

    def _still(self, suspect: Suspect, now: Record, side: Side | None) -> bool:
        if now.token != suspect.record.token:
            return False
        found = judge(now, side, self.guards)
        if found is None or found[0] is not suspect.kind:
            return False
        if suspect.kind in (Kind.DEAD, Kind.FINISHED) and now.lease_ends > suspect.record.lease_ends + RENEWED:
            return False  # its holder renews it
        if suspect.kind in (Kind.DIFFERS, Kind.FINISHED):  # lock, row, lock: so both states are of one moment
            after = self.backend.get(now.name)
            return after is not None and after.token == now.token
        return True

    def _act(self, suspect: Suspect, now: Record, side: Side | None) -> Finding:
        alive = holders.alive(now.holder)
        if suspect.kind is Kind.DIFFERS:
            return _finding(suspect, Came.KEPT, suspect.why)
        if suspect.kind is Kind.FINISHED and (alive is True or now.holder.kept):
            why = "its holder's process runs" if alive else "it is kept for a message that is on its way"
            return _finding(suspect, Came.KEPT, f"{suspect.why}; but {why}")
        if suspect.kind is Kind.NO_EXPIRY:
            return self._bound(suspect, now)
        claimed = None if suspect.kind is Kind.FINISHED or side is None else self._claimed(side, now)
        if self.options.dry_run:
            came = PutBackResult(False)
            if claimed is not None:
                came = self.restorer.preview(claimed.side.model, [claimed.guard], publish=alive is not True)
            return _finding(suspect, Came.WOULD, suspect.why, came)
        return self.release(suspect, now, claimed, alive)

    def _bound(self, suspect: Suspect, now: Record) -> Finding:
        """Give a lock without expiry a TTL."""
        ttl = _remaining(now)
        why = f"{suspect.why}: it ends in {ttl / 1000:.0f} s unless renewed"
        if self.options.dry_run:
            return _finding(suspect, Came.WOULD, why)
        done = self.backend.bound(now.name, now.token, ttl)
        return _finding(suspect, Came.SWEPT if done else Came.CHANGED, why)

    def _claimed(self, side: Side, record: Record) -> ClaimedRow | None:
        """Return the row that this lock's holder has claimed; ``None`` if there is no row to restore."""
        if side.row is None or (side.row.token is not None and side.row.token != record.token):
            return None
        guard = self.guards.of(side, record, self.restorer.publisher.task_of)
        if guard is None or (side.row.token is None and not side.row.claimed_by(guard.guard)):
            return None
        return ClaimedRow(side, guard)

    def release(self, suspect: Suspect, now: Record, claimed: ClaimedRow | None, alive: bool | None) -> Finding:
        """Restore the row, then release the lock; in reverse order if the task is to be published.

        Its worker must find the lock free, and a sweep that is killed in between leaves a claimed row without a lock,
        which the next sweep finds.
        """
        came = PutBackResult(False)
        first = self.options.requeue and alive is not True
        removed = bool(take_away(now)) if first else False
        if claimed is not None and (removed or not first):
            came = self.restorer.put_back(
                claimed.side.model,
                claimed.side.pk,
                now.token,
                [claimed.guard],
                publish=alive is not True,
                free=[now.name] if first else [],
            )
        if not first:
            removed = bool(take_away(now))
        if came.done or (removed and (claimed is None or came.why)):
            return _finding(suspect, Came.SWEPT, suspect.why, came)
        return _finding(suspect, Came.CHANGED, "somebody else was first just now", came)


def judge(record: Record, side: Side | None, guards: Guards) -> tuple[Kind, str] | None:
    """Return the class of a lock and the evidence; ``None`` if nothing is wrong with it, as far as is known."""
    holder = record.holder
    if record.token and not holder.kept and holders.alive(holder) is False:
        return Kind.DEAD, f"process {holder.pid} on this machine is dead"
    if record.ttl is None:
        return Kind.NO_EXPIRY, "nothing but a release would end it"
    if record.token and not holder.kept and record.until < record.now:
        return Kind.OVERDUE, f"its timeout ended {(record.now - record.until) / 1000:.0f} s ago"
    if side is None or side.row is None or side.row.token is None:
        return None
    if side.row.token == record.token:
        return None
    if side.row.token:
        return Kind.DIFFERS, "its row is claimed by another token: whoever claimed it last is the one that may write"
    if not guards.claimable(side):
        said = ", ".join(f"{state!r}" for state in side.row.states.values())
        return Kind.FINISHED, f"its row is not claimed any more, and {said}"
    return None  # about to be claimed, or just released


def _remaining(record: Record) -> int:
    """Return milliseconds: the rest of the timeout, at least a lease; for a foreign value the default timeout."""
    hold, lease = get_settings().default_spans
    return hold if not record.token else max(record.until - record.now, lease)


def _finding(suspect: Suspect, came: Came, why: str, result: PutBackResult | None = None) -> Finding:
    result = result or PutBackResult(False)
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
