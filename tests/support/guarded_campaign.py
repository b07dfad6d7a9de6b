"""Workers of a campaign: they take locks and write to guarded rows, while a test does harm to the store."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, NamedTuple

from tests.support.workers import Worker

__all__ = ["WORK", "Outcome", "outcome_of", "settled"]

WORK = """
    import random, time
    from pathlib import Path
    from django_tasklock import BackendUnavailable, GuardRejected
    from tests.support.guards import GUARD
    def work(names, rows, until, longest, lease=6):
        journal, refused, stale, away = [], 0, 0, 0
        while not Path(until).exists():
            which = random.randrange(len(names))
            lock = TaskLock(names[which], lease=lease, timeout=60, blocking_timeout=random.choice([None, 2]))
            try:
                if not lock.acquire():
                    time.sleep(0.005)
                    continue
            except BackendUnavailable:
                away += 1
                time.sleep(0.05)
                continue
            began = time.monotonic()
            try:
                claim = Claim.take(Video, rows[which], GUARD, lock.token)
                ends = time.monotonic() + random.choice([0.01, 0.1, longest])
                while time.monotonic() < ends and lock.held:
                    claim.update(progress=claim.epoch)
                    found = Video.objects.get(pk=rows[which])
                    stale += found.lock_epoch == claim.epoch and found.progress != claim.epoch
                    time.sleep(0.02)
                claim.give_back()
            except (StaleClaim, GuardRejected):
                refused += 1
            finally:
                over = time.monotonic()
                journal.append((names[which], began, over if lock.held else min(over, lock.lease.deadline)))
                try:
                    lock.release()
                except BackendUnavailable:
                    away += 1
        return journal, refused, stale, away
"""


class Outcome(NamedTuple):
    """What all workers saw together."""

    holds: list[tuple[str, float, float]]
    """Of each: the name, when it began, and until when its holder could count on it."""
    overlaps: list[Any]
    """Two holds of a name at once."""
    refused: int
    """Claims that were refused, or overtaken."""
    stale: int
    """Writes of somebody else that a row has accepted."""
    away: int
    """Times at which the store was not available."""


def outcome_of(workers: Sequence[Worker]) -> Outcome:
    """Wait for their journals, which they hand over when the campaign is over."""
    journals, refused, stale, away = zip(*(worker.done(60) for worker in workers), strict=True)
    holds = sorted(hold for journal in journals for hold in journal)
    overlaps = [(one, two) for one, two in pairwise(holds) if one[0] == two[0] and two[1] < one[2] - 0.001]
    return Outcome(holds, overlaps, sum(refused), sum(stale), sum(away))


def settled(tasklock: dict[str, Any]) -> str:
    """What a worker is to run first: its locks are there."""
    return f"""
        from django.test.utils import override_settings
        override_settings(TASKLOCK={tasklock!r}).enable()
    """
