"""Messages that a dead worker had fetched: their lease is over, and no worker renews it or puts them back."""

from __future__ import annotations

from django_tasklock.exceptions import BackendUnavailable
from django_tasklock.operations.sweep.options import SweepOptions
from django_tasklock.operations.sweep.report import Finding, FindingOutcome, Kind, SweepLog
from django_tasklock.operations.sweep.stream import sleep


def sweep_lapsed(options: SweepOptions, log: SweepLog) -> None:
    """Check twice, then put each message back into its queue, as any living worker would."""
    from django_tasklock.celery.messages.recovery import LapsedMessages

    try:
        with LapsedMessages.open() as messages:
            if messages is None:
                return
            if messages.problem:
                log.record_left_out(f"messages of dead workers: {messages.problem}")
                return
            suspects = messages.find((options.age or 0) / 1000)
            log.looked_at["messages"] += len(suspects)
            if not suspects:
                return
            sleep(options.pause)
            confirmed = messages.confirm(suspects, dry_run=options.dry_run)
            for tag, since in suspects.items():
                if options.timed_out:
                    break
                described = messages.describe(tag)
                holder = "" if described is None else f"{described.task}[{described.task_id}]"
                why = f"its lease has been over for {since:.0f} s, and no worker renews it"
                came = FindingOutcome.WOULD if options.dry_run else FindingOutcome.SWEPT
                if tag not in confirmed or described is None:
                    came, why = (
                        FindingOutcome.CHANGED,
                        "a worker renewed it in between, or puts such messages back itself",
                    )
                elif not described.queues:
                    came, why = FindingOutcome.KEPT, "no queue is bound to its exchange with its routing key"
                elif not options.dry_run:
                    with log.audit_interruption(holder, Kind.LAPSED, why):
                        messages.put_back(tag)
                        log.add(Finding(Kind.LAPSED, came, why, holder=holder))
                    continue
                log.add(Finding(Kind.LAPSED, came, why, holder=holder))
            log.write_audit_entries(options.by)
    except BackendUnavailable as error:
        log.record_left_out(f"messages of dead workers: {error}")
