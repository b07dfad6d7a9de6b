"""For ``SITE_TASKS``: tasks whose messages are not started again if their process dies."""

from __future__ import annotations

from typing import Any

from celery import shared_task

from django_tasklock.celery import OnceTask
from tests.support.celery_site.tasks import hold_here
from tests.support.guards import GUARD
from tests.testapp.models import Video

__all__ = ["brittle_hold", "brittle_video"]


@shared_task(base=OnceTask, key="hold:{key}", takeovers=0)
def brittle_hold(key: str, seconds: float = 0.0, until: str | None = None, **more: Any) -> dict[str, Any]:
    """Fails with ``CrashLoop`` instead."""
    return hold_here(key, seconds, until, **more)


@shared_task(base=OnceTask, key="hold:{video_id}", takeovers=0, guard=GUARD, model=Video, pk="video_id")
def brittle_video(video_id: int, until: str | None = None) -> dict[str, Any]:
    """So does this one, and its row is failed."""
    return hold_here(str(video_id), until=until)
