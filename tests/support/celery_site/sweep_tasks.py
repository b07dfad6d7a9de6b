"""Guarded tasks whose rows cannot be claimed twice: what a sweep puts back and publishes again."""

from __future__ import annotations

import os
import signal
import time
from typing import Any

from celery import shared_task

from django_tasklock import acquire_task_lock, model_lock, release_task_lock
from django_tasklock.celery import OnceTask
from tests.support.celery_site.journal import note
from tests.support.celery_site.tasks import BY_SETTINGS, hold_here
from tests.support.guards import ONCE
from tests.testapp.models import PlainVideo, Track, Video

__all__ = ["plain_hold", "retrying_hold", "swept_deadly", "swept_plain", "swept_track", "swept_two", "swept_video"]


@shared_task
def plain_hold(key: str, until: str | None = None) -> dict[str, Any]:
    """Takes a lock by the plain functions, which no heartbeat renews."""
    assert acquire_task_lock(f"plain:{key}", timeout=600)
    try:
        return hold_here(key, until=until)
    finally:
        release_task_lock(f"plain:{key}")


@shared_task(base=OnceTask, bind=True, key="retrying:{key}", max_retries=5, **BY_SETTINGS)
def retrying_hold(self: Any, key: str, until: str | None = None) -> dict[str, Any]:
    """Retries once."""
    if self.request.retries == 0:
        raise self.retry(countdown=2)
    return hold_here(key, until=until)


@shared_task(bind=True)
@model_lock(Video, "swept:{video_id}", pk="video_id", guard=ONCE)
def swept_video(self: Any, video_id: int, seconds: float = 0.0, until: str | None = None) -> dict[str, Any]:
    """The rule: a bound task, a row with a token, a lock by the primary key."""
    return hold_here(video_id, seconds, until)


@shared_task(base=OnceTask, bind=True, model=Track, lookup="uid", guard=ONCE)
def swept_track(self: Any, uid: str, until: str | None = None) -> dict[str, Any]:
    """A row that is known by its public id; the lock is named after it."""
    return hold_here(str(uid), until=until)


@shared_task
@model_lock(Video, "swept:{video_id}", pk="video_id", guard=ONCE)
def swept_two(video_id: int, quality: str) -> dict[str, Any]:
    """Needs more than the row's primary key."""
    return hold_here(video_id, quality=quality)


@shared_task(base=OnceTask, model=Video, key="swept:{video_id}", guard=ONCE, takeovers=1, acks_late=False)
def swept_deadly(video_id: int) -> None:
    """Kills its worker, and the message is not delivered again."""
    note("start", video_id)
    os.kill(os.getppid(), signal.SIGKILL)
    time.sleep(60)


@shared_task
@model_lock(PlainVideo, "plain:{video_id}", pk="video_id", guard=ONCE)
def swept_plain(video_id: int) -> dict[str, Any]:
    """A row without a token."""
    return hold_here(video_id)
