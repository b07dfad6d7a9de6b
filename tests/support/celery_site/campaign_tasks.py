"""The tasks of the campaigns in which workers are killed."""

from __future__ import annotations

from typing import Any

from celery import shared_task

from django_tasklock import counts, task_lock
from django_tasklock.celery import OnceTask
from tests.support.celery_site.tasks import hold_here

__all__ = ["hardy_decorated", "hardy_flushing", "hardy_once"]

HARDY: dict[str, Any] = {"takeovers": 1000, "acks_late": True, "reject_on_worker_lost": True}


@shared_task(base=OnceTask, key="hold:{key}", **HARDY)
def hardy_once(key: str, seconds: float = 0.0) -> dict[str, Any]:
    """Begins again however often it is killed."""
    return hold_here(key, seconds)


@shared_task(**HARDY)
@task_lock("hold:{key}")
def hardy_decorated(key: str, seconds: float = 0.0, until: str | None = None) -> dict[str, Any]:
    """The same."""
    return hold_here(key, seconds, until)


@shared_task(**HARDY)
@task_lock("hold:{key}")
def hardy_flushing(key: str, until: str) -> dict[str, Any]:
    """The same, after its process has written what it has counted."""
    counts.flush()
    return hold_here(key, until=until)
