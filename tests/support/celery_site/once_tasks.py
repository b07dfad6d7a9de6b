"""Tasks with ``base=OnceTask``, and decorated ones with the words that only Celery knows."""

from __future__ import annotations

from typing import Any

from celery import shared_task

from django_tasklock.celery import OnceTask
from tests.support.celery_site.tasks import BY_SETTINGS, hold_here
from tests.support.guards import GUARD
from tests.testapp.models import Video

__all__ = ["coalescing_hold", "guarded_queue", "late_hold", "once_hold", "queued_hold"]


@shared_task(base=OnceTask, key="hold:{key}", **BY_SETTINGS)
def once_hold(key: str, seconds: float = 0.0, until: str | None = None, **more: Any) -> dict[str, Any]:
    """Rejects if busy, unless the caller says something else."""
    return hold_here(key, seconds, until, **more)


@shared_task(base=OnceTask, key="hold:{key}", on_conflict="queue", **BY_SETTINGS)
def queued_hold(key: str, seconds: float = 0.0, until: str | None = None, **more: Any) -> dict[str, Any]:
    """Parked if busy."""
    return hold_here(key, seconds, until, **more)


@shared_task(base=OnceTask, key="hold:{key}", on_conflict="queue")
def late_hold(key: str, seconds: float = 0.0, until: str | None = None, **more: Any) -> dict[str, Any]:
    """Parked if busy; comes back if its worker dies."""
    return hold_here(key, seconds, until, **more)


@shared_task(base=OnceTask, key="hold:{key}", on_conflict="coalesce", **BY_SETTINGS)
def coalescing_hold(key: str, seconds: float = 0.0, until: str | None = None, **more: Any) -> dict[str, Any]:
    """At most one waits, the newest."""
    return hold_here(key, seconds, until, **more)


@shared_task(
    base=OnceTask,
    key="video:{video_id}",
    on_conflict="queue",
    guard=GUARD,
    model=Video,
    pk="video_id",
)
def guarded_queue(video_id: int, seconds: float = 0.0, until: str | None = None) -> dict[str, Any]:
    """Claims the row."""
    return hold_here(video_id, seconds, until)
