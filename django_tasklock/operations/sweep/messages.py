"""Messages that a dead worker had fetched: their lease is over, and no worker renews it or puts them back."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

from django_tasklock.exceptions import BackendUnavailable
from django_tasklock.operations.sweep.options import SweepOptions
from django_tasklock.operations.sweep.report import Finding, FindingOutcome, Kind, Suspect, SweepLog
from django_tasklock.operations.sweep.stream import sweep_twice

if TYPE_CHECKING:
    from django_tasklock.celery.messages.index import Index

MUTEX_TIMEOUT = 5.0
"""Seconds for which the workers leave it to this process to put messages back."""


def sweep_messages(options: SweepOptions, log: SweepLog) -> None:
    """Check twice, then put each message back into its queue, as any living worker would."""
    from django_tasklock.celery.messages.index import temporary_index
    from django_tasklock.celery.messages.marks import project_app, project_lease

    lease = project_lease()
    if lease is None:
        return
    app = project_app()
    try:
        with temporary_index(app, lease) as index:
            index.declare_exchanges(app.amqp.queues.values())
            uptime = _uptime(index)
            if uptime is not None and uptime < lease:
                log.record_left_out(
                    f"messages of dead workers: the broker was started {uptime:.0f} s ago, and workers have a lease's"
                    " time to renew theirs"
                )
                return
            sweep_twice(_MessageSweep(index, lease, options, log), log, options.pause)
    except BackendUnavailable as error:
        log.record_left_out(f"messages of dead workers: {error}")


def _uptime(index: Index) -> float | None:
    try:
        return index.uptime()
    except index.refusal:  # the workers go without it as well
        return None


class _MessageSweep:
    """The part of a sweep that checks messages. A suspect is what was found of one: its delivery tag."""

    def __init__(self, index: Index, lease: float, options: SweepOptions, log: SweepLog) -> None:
        self.index = index
        self.lease = lease
        self.options = options
        self.log = log
        self.renewed: dict[str, float] = {}
        """When each message whose lease is over was renewed at last."""

    def find(self) -> Iterator[Suspect[str]]:
        """Yield the messages whose lease is over."""
        self.renewed = self.index.lapsed((self.options.age or 0) / 1000)
        self.log.looked_at["messages"] += len(self.renewed)
        yield from map(self._suspect, self.renewed)

    def _suspect(self, tag: str) -> Suspect[str]:
        described = self.index.unacknowledged(tag)
        holder = "" if described is None else f"{described.task}[{described.task_id}]"
        over = time.time() - self.lease - self.renewed[tag]
        why = f"its lease has been over for {over:.0f} s, and no worker renews it"
        return Suspect(Kind.LAPSED, why, tag, holder=holder)

    def confirm(self, batch: list[Suspect[str]]) -> Iterator[tuple[Suspect[str], Suspect[str] | None]]:
        """Yield each suspect; with ``None`` if a worker renewed it, or puts such messages back itself.

        Unless it is a dry run, the workers then leave that to this process for some seconds.
        """
        from django_tasklock.celery.messages.index import MUTEX

        lapsed = {}
        if self.options.dry_run or self.index.set_once(MUTEX, MUTEX_TIMEOUT):
            lapsed = self.index.lapsed()
        for suspect in batch:
            yield suspect, suspect if lapsed.get(suspect.found) == self.renewed[suspect.found] else None

    def act(self, suspect: Suspect[str]) -> Finding:
        """Put a message back into its queue."""
        described = self.index.unacknowledged(suspect.found)
        if described is None:
            return suspect.finding(FindingOutcome.CHANGED, "it was acknowledged just now")
        if not described.queues:
            return suspect.finding(FindingOutcome.KEPT, "no queue is bound to its exchange with its routing key")
        if self.options.dry_run:
            return suspect.finding(FindingOutcome.WOULD)
        self.index.requeue(suspect.found)
        return suspect.finding(FindingOutcome.SWEPT)
