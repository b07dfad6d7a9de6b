"""Rows in a claimed state that nobody has claimed: a form, a fixture or a ``save()`` has set the state back."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from django_tasklock.backends.contract.stores import LockStore
from django_tasklock.columns import EPOCH
from django_tasklock.conf import DEFAULT, spans
from django_tasklock.guards.guard import Guarded
from django_tasklock.guards.rows import claimed_pages, columns_of
from django_tasklock.names import own_name
from django_tasklock.operations.durations import format_duration
from django_tasklock.operations.sweep.guards import Guards
from django_tasklock.operations.sweep.options import SweepOptions
from django_tasklock.operations.sweep.report import Finding, FindingOutcome, Kind, Suspect, SweepLog
from django_tasklock.operations.sweep.rows import Claimed, RowSweep

MOST = 1000
"""The most rows of one state that are looked at."""
LONGEST = 43_200.0
"""Seconds after which a row has waited long enough, whatever its timeout: the store remembers it for a day."""


@dataclass(frozen=True, slots=True)
class UnclaimedSweep:
    """The part of a sweep that names rows in a claimed state without a token, and puts them back on request.

    A state from which no guard claims is never left like that, so its rows are found at once. In one that is claimable
    a row may wait for its message, so it is found when sweeps have seen it without a claim for longer than its timeout.
    """

    backend: LockStore
    guards: Guards
    rows: RowSweep
    options: SweepOptions
    log: SweepLog

    def find(self) -> Iterator[Suspect[Claimed]]:
        """Yield rows in a claimed state without a token."""
        for model, where, claimable, guards in self.guards.unclaimed_queries():
            if self.options.timed_out:
                return
            label = model._meta.label_lower
            page = next(claimed_pages(model, where, [*columns_of(guards), EPOCH], "pk"), [])
            self.log.looked_at["rows"] += len(page)
            if len(page) == MOST:
                self.log.record_left_out(f"rows of {label} in a claimed state without a claim, beyond the first {MOST}")
            for claimed in self.rows.select(model, guards, page):
                age = self._age(label, claimed) if claimable else None
                if age is not None and age <= _timeout(claimed.guards):
                    continue
                state = claimed.row.values[claimed.guards[0].guard.field]
                since = "" if age is None else f", for {format_duration(age)} or longer"
                why = f"its state is {state!r}, and nobody has claimed it{since}"
                name = claimed.names[0] if claimed.names_complete and len(claimed.names) == 1 else ""
                yield Suspect(Kind.UNCLAIMED, why, claimed, name, f"{label}:{claimed.row.pk}")

    def _age(self, label: str, claimed: Claimed) -> float:
        """Return seconds since a sweep saw the row first, with the same state and epoch."""
        row = claimed.row
        seen = hashlib.sha256(f"{label}\n{row.pk}\n{sorted(row.values.items())}".encode()).hexdigest()
        name = own_name(f"unclaimed:{seen}")
        now = int(time.time())
        since = self.backend.tally(name, 0)
        if not self.options.dry_run:
            self.backend.tally(name, 1 if since else now)  # one second later: only a change makes the store remember it
        return float(now - since) if since else 0.0

    def confirm(self, batch: list[Suspect[Claimed]]) -> Iterator[tuple[Suspect[Claimed], Suspect[Claimed] | None]]:
        """Yield each suspect; with ``None`` if its row has changed, or it has a live lock."""
        return self.rows.confirm(batch)

    def act(self, suspect: Suspect[Claimed]) -> Finding:
        """Put a row back, if that is requested and changes something."""
        guard = suspect.found.guards[0].guard
        if not self.options.unclaimed:
            return suspect.finding(FindingOutcome.KEPT, f"{suspect.why}: sweep_locks --unclaimed puts it back")
        one, why = self.rows.restorer.choose_publishable(suspect.found.guards)
        if one is None and guard.retry == guard.claim_as:
            what = why or "with --requeue its task is published"
            return suspect.finding(FindingOutcome.KEPT, f"{suspect.why}; it is claimable as it is: {what}")
        return self.rows.act(suspect)


def _timeout(guards: list[Guarded]) -> float:
    return min(LONGEST, max(spans(_option(one), DEFAULT, str(one.model))[0] for one in guards) / 1000)


def _option(guarded: Guarded) -> Any:
    """Return the timeout of the function or task of a guard, as it was given."""
    locked = guarded.locked
    if isinstance(locked, type):  # a task class
        locked = locked.once_options.lock  # type: ignore[attr-defined]
    return getattr(locked, "timeout", DEFAULT)
