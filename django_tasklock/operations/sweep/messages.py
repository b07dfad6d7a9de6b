"""Messages that a dead worker had fetched: their lease is over, and no worker renews it or puts them back."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from django_tasklock.exceptions import BackendUnavailable
from django_tasklock.operations.sweep.options import SweepOptions
from django_tasklock.operations.sweep.report import Finding, FindingOutcome, Kind, Suspect, SweepLog
from django_tasklock.operations.sweep.stream import sweep_twice

if TYPE_CHECKING:
    from django_tasklock.celery.messages.recovery import LapsedMessages


def sweep_messages(options: SweepOptions, log: SweepLog) -> None:
    """Check twice, then put each message back into its queue, as any living worker would."""
    from django_tasklock.celery.messages.recovery import LapsedMessages

    try:
        with LapsedMessages.open() as messages:
            if messages is None:
                return
            if messages.problem:
                log.record_left_out(f"messages of dead workers: {messages.problem}")
                return
            sweep_twice(_MessageSweep(messages, options, log), log, options.pause)
    except BackendUnavailable as error:
        log.record_left_out(f"messages of dead workers: {error}")


class _MessageSweep:
    """The part of a sweep that checks messages. A suspect is what was found of one: its delivery tag."""

    def __init__(self, messages: LapsedMessages, options: SweepOptions, log: SweepLog) -> None:
        self.messages = messages
        self.options = options
        self.log = log
        self.over: dict[str, float] = {}
        """How long the lease of each message has been over, in seconds."""

    def find(self) -> Iterator[Suspect[str]]:
        """Yield the messages whose lease is over."""
        self.over = self.messages.find((self.options.age or 0) / 1000)
        self.log.looked_at["messages"] += len(self.over)
        yield from map(self._suspect, self.over)

    def _suspect(self, tag: str) -> Suspect[str]:
        described = self.messages.describe(tag)
        holder = "" if described is None else f"{described.task}[{described.task_id}]"
        why = f"its lease has been over for {self.over[tag]:.0f} s, and no worker renews it"
        return Suspect(Kind.LAPSED, why, tag, holder=holder)

    def confirm(self, batch: list[Suspect[str]]) -> Iterator[tuple[Suspect[str], Suspect[str] | None]]:
        """Yield each suspect; with ``None`` if a worker renewed it, or puts such messages back itself."""
        over = {suspect.found: self.over[suspect.found] for suspect in batch}
        confirmed = self.messages.confirm(over, dry_run=self.options.dry_run)
        for suspect in batch:
            yield suspect, suspect if suspect.found in confirmed else None

    def act(self, suspect: Suspect[str]) -> Finding:
        """Put a message back into its queue."""
        described = self.messages.describe(suspect.found)
        if described is None:
            return suspect.finding(FindingOutcome.CHANGED, "it was acknowledged just now")
        if not described.queues:
            return suspect.finding(FindingOutcome.KEPT, "no queue is bound to its exchange with its routing key")
        if self.options.dry_run:
            return suspect.finding(FindingOutcome.WOULD)
        self.messages.put_back(suspect.found)
        return suspect.finding(FindingOutcome.SWEPT)
