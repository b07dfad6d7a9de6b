"""Held locks: without expiry, overdue, of dead processes, of finished rows, and of rows that others have claimed."""

from __future__ import annotations

from collections.abc import Iterator
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
"""Milliseconds by which the end of a lease must have moved to be a renewal: stores round."""


class Suspect(NamedTuple):
    """A lock at the first look."""

    kind: Kind
    why: str
    record: Record


def sweep_locks(
    backend: LockStore, guards: Guards, restorer: RowRestorer, options: SweepOptions, notes: SweepLog
) -> None:
    """Look twice, and act on what the second look confirms."""
    for batch in second_look(_suspects(backend, guards, options, notes), options.pause):
        for start in range(0, len(batch), PAGE):
            _again(batch[start : start + PAGE], backend, guards, restorer, options, notes)


def _suspects(backend: LockStore, guards: Guards, options: SweepOptions, notes: SweepLog) -> Iterator[Suspect]:
    """Look for the first time: what has no expiry, by an index of its own; then all that is held."""
    endless: set[str] = set()
    if backend.counts().no_expiry:
        for page in of_kind(backend, Query("no_expiry", limit=PAGE)):
            if options.over:
                return
            endless |= {record.name for record in page}
            yield from _judged(page, guards, options)
    for page in live_locks(backend):
        if options.over:
            return
        notes.looked_at["locks"] += len(page)
        yield from _judged([record for record in page if record.name not in endless], guards, options)


def _judged(page: list[Record], guards: Guards, options: SweepOptions) -> Iterator[Suspect]:
    wanted = [record for record in page if options.wants(record)]
    sides = guards.sides(wanted)
    for record in wanted:
        found = judge(record, sides.get(record.holder.row), guards)
        if found is not None:
            yield Suspect(*found, record)


def judge(record: Record, side: Side | None, guards: Guards) -> tuple[Kind, str] | None:
    """Return the class of a lock, and the evidence; ``None``: nothing is wrong with it, as far as can be known."""
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
    return None  # about to be claimed, or just given back


def _again(
    batch: list[Suspect],
    backend: LockStore,
    guards: Guards,
    restorer: RowRestorer,
    options: SweepOptions,
    notes: SweepLog,
) -> None:
    """Look at each for the second time, and act: only if everything is as it was."""
    seen = [backend.get(suspect.record.name) for suspect in batch]
    sides = guards.sides(record for record in seen if record is not None)
    for suspect, now in zip(batch, seen, strict=True):
        side = None if now is None else sides.get(now.holder.row)
        if now is None or now.token != suspect.record.token or not _still(suspect, now, side, guards, backend):
            notes.add(_finding(suspect, Came.CHANGED, side, "it was no longer so at the second look"))
            continue
        notes.add(_act(suspect, now, side, backend, guards, restorer, options))
    notes.write(options.by)


def _still(suspect: Suspect, now: Record, side: Side | None, guards: Guards, backend: LockStore) -> bool:
    found = judge(now, side, guards)
    if found is None or found[0] is not suspect.kind:
        return False
    if suspect.kind in (Kind.DEAD, Kind.FINISHED) and now.lease_ends > suspect.record.lease_ends + RENEWED:
        return False  # somebody renews it
    if suspect.kind in (Kind.DIFFERS, Kind.FINISHED):  # a look at the lock, at the row, and at the lock: of one moment
        after = backend.get(now.name)
        return after is not None and after.token == now.token
    return True


def _act(
    suspect: Suspect,
    now: Record,
    side: Side | None,
    backend: LockStore,
    guards: Guards,
    restorer: RowRestorer,
    options: SweepOptions,
) -> Finding:
    alive = holders.alive(now.holder)
    if suspect.kind is Kind.DIFFERS:
        return _finding(suspect, Came.KEPT, side, suspect.why)
    if suspect.kind is Kind.FINISHED and (alive is True or now.holder.kept):
        why = "its holder's process runs" if alive else "it is kept for a message that is on its way"
        return _finding(suspect, Came.KEPT, side, f"{suspect.why}; but {why}")
    if suspect.kind is Kind.NO_EXPIRY:
        ttl = _remaining(now)
        why = f"{suspect.why}: it ends in {ttl / 1000:.0f} s unless renewed"
        if options.dry_run:
            return _finding(suspect, Came.WOULD, side, why)
        done = backend.bound(now.name, now.token, ttl)
        return _finding(suspect, Came.SWEPT if done else Came.CHANGED, side, why)
    row = None if suspect.kind is Kind.FINISHED or side is None else _row(side, now, guards, restorer)
    if options.dry_run:
        came = (
            restorer.preview(side.model, [row], publish=alive is not True)
            if row is not None and side is not None
            else PutBackResult(False)
        )
        return _finding(suspect, Came.WOULD, side, suspect.why, came)
    return release(suspect, now, side, row, alive, restorer, options)


def _remaining(record: Record) -> int:
    """Return milliseconds: what is left of its timeout, at least a lease; of a value that is not ours the whole
    timeout.
    """
    hold, lease = get_settings().default_spans
    return hold if not record.token else max(record.until - record.now, lease)


def _row(side: Side, record: Record, guards: Guards, restorer: RowRestorer) -> Guarded | None:
    """Return the guard of a row that this lock's holder has claimed; ``None``: there is nothing to put back."""
    if side.row is None or (side.row.token is not None and side.row.token != record.token):
        return None
    one = guards.of(side, record, restorer.publisher.task_of)
    if one is None or (side.row.token is None and not side.row.claimed_by(one.guard)):
        return None
    return one


def release(
    suspect: Suspect,
    now: Record,
    side: Side | None,
    row: Guarded | None,
    alive: bool | None,
    restorer: RowRestorer,
    options: SweepOptions,
) -> Finding:
    """Put the row back, then free the lock. With a task to be published it is the other way round: its worker is to
    find the lock free, and a sweep that is killed in between leaves a claimed row without a lock, which the next one
    finds.
    """
    came = PutBackResult(False)
    first = options.requeue and alive is not True
    removed = bool(take_away(now)) if first else False
    if row is not None and side is not None and (removed or not first):
        came = restorer.put_back(
            side.model, side.pk, now.token, [row], publish=alive is not True, free=[now.name] if first else []
        )
    if not first:
        removed = bool(take_away(now))
    if came.done or (removed and (row is None or came.why)):
        return _finding(suspect, Came.SWEPT, side, suspect.why, came)
    return _finding(suspect, Came.CHANGED, side, "somebody else was first just now", came)


def _finding(suspect: Suspect, came: Came, side: Side | None, why: str, result: PutBackResult | None = None) -> Finding:
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
