"""The sweep as a Celery task for beat. See docs/operate.md."""

from __future__ import annotations

from typing import Any

from celery import shared_task

from django_tasklock.operations.plain import to_plain
from django_tasklock.operations.sweep import sweep
from django_tasklock.operations.values import Actor


@shared_task(name="django_tasklock.tasks.sweep_locks", ignore_result=False)
def sweep_locks(
    older_than: float | None = None,
    prefix: str = "",
    models: list[str] | tuple[str, ...] = (),
    requeue: bool = False,
    dry_run: bool = False,
) -> dict[str, Any]:
    """Run ``sweep()`` with these arguments and return its report. Several may run at once."""
    report = sweep(
        older_than=older_than,
        prefix=prefix,
        models=models,
        requeue=requeue,
        dry_run=dry_run,
        by=Actor("task django_tasklock.tasks.sweep_locks"),
    )
    return {**to_plain(report), "findings": []}  # they are in the audit trail already
