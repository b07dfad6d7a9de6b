"""Tasks whose messages are rejected while their lock is busy, and what Celery makes known of that."""

from __future__ import annotations

import os
from typing import Any

from celery import shared_task
from celery.signals import task_failure

from django_tasklock import concurrency_limited, task_lock
from django_tasklock.celery import OnceTask
from tests.support.celery_site.journal import ENVIRONMENT, note
from tests.support.celery_site.tasks import hold_here

__all__ = ["early", "limited", "locked", "rejecting"]


@shared_task(base=OnceTask, key="hold:{key}", autoretry_for=(Exception,))
def rejecting(key: str, until: str | None = None) -> dict[str, Any]:
    """Acknowledged late: the broker is told what became of it."""
    return hold_here(key, until=until)


@shared_task(base=OnceTask, key="hold:{key}", acks_late=False)
def early(key: str) -> dict[str, Any]:
    """Acknowledged when it begins."""
    return hold_here(key)


@shared_task(acks_late=True)
@task_lock("hold:{key}", on_conflict="reject")
def locked(key: str) -> dict[str, Any]:
    """A decorated one."""
    return hold_here(key)


@shared_task(acks_late=True)
@concurrency_limited("hold", limit=1, on_conflict="reject")
def limited(key: str, until: str | None = None) -> dict[str, Any]:
    """One that has no permit."""
    return hold_here(key, until=until)


@task_failure.connect(weak=False, dispatch_uid="rejecting_tasks")
def _failed(sender: Any = None, task_id: str = "", **details: Any) -> None:
    if ENVIRONMENT in os.environ and sender.name.startswith(__name__):
        note("failure", task_id)
