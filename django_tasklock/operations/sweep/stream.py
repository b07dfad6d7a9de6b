"""Two looks at everything, with a pause in between."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from typing import Protocol, TypeVar

from django_tasklock.operations.sweep.report import Finding, FindingOutcome, Suspect, SweepLog

T = TypeVar("T")

BATCH_SIZE = 10_000
"""Suspects that share one pause, and one reading of the index."""


class Finder(Protocol[T]):
    """One class of what may be left behind: what to look for, and what to do about it."""

    def find(self) -> Iterator[Suspect[T]]:
        """Yield what looks left behind: the first look."""

    def confirm(self, batch: list[Suspect[T]]) -> Iterator[tuple[Suspect[T], Suspect[T] | None]]:
        """Yield each suspect with what the second look found; ``None``: nothing, or something else."""

    def act(self, suspect: Suspect[T]) -> Finding:
        """Put a confirmed suspect right, unless it has changed since, and return what came of it."""


def sweep_twice(finder: Finder[T], log: SweepLog, pause: float) -> None:
    """Act on each suspect that is still one at a second look, ``pause`` seconds after the first."""
    for batch in batches(finder.find(), BATCH_SIZE):
        sleep(pause)
        for suspect, confirmed in finder.confirm(batch):
            if confirmed is None:
                log.add(suspect.finding(FindingOutcome.CHANGED, "it was no longer so at the second check"))
            else:
                log.add(finder.act(confirmed))
        log.write_audit_entries()


def batches(items: Iterable[T], size: int) -> Iterator[list[T]]:
    """Yield the items in lists of this size; the last one may be shorter."""
    batch: list[T] = []
    for item in items:
        batch.append(item)
        if len(batch) == size:
            yield batch
            batch = []
    if batch:
        yield batch


def sleep(pause: float) -> None:
    """Sleep between the two looks, so that others can act."""
    time.sleep(pause)
