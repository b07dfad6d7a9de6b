"""Tasks that are parked when busy, for the tests of what waits: quick promoters, and what they are to lose."""

from __future__ import annotations

import os
import time
from typing import Any

from celery import shared_task
from django.db.models import F

from django_tasklock import current_claim, model_lock
from django_tasklock.celery import OnceTask
from django_tasklock.celery.queue import promoter as promotion
from tests.support.celery_site.journal import journaled, note
from tests.support.celery_site.tasks import BY_SETTINGS, hold_here
from tests.support.guards import GUARD
from tests.testapp.models import Video

__all__ = ["QUICK", "coalescing_video", "counting_queue", "short_queue", "storm", "told"]

QUICK = "TASKLOCK_SITE_QUICK"
"""Set by a test, in the environment of its workers: promoters look every second, and wait two for what they sent."""
if os.environ.get(QUICK):
    promotion.PERIOD, promotion.PATIENCE, promotion.PREDECESSOR_PATIENCE = 1.0, 2.0, 2.0


@shared_task(
    base=OnceTask,
    key="storm:{line}",
    on_conflict="queue",
    guard=GUARD,
    model=Video,
    pk="video_id",
    takeovers=1000,
)
def storm(line: str, video_id: int, seconds: float = 0.0) -> dict[str, Any]:
    """One row's work, in line with others: two fenced writes with a pause between them."""
    with journaled(video_id, line=line):
        claim = current_claim()
        assert claim is not None
        claim.update(progress=F("progress") + 1)
        time.sleep(seconds)
        claim.update(progress=100)
    return {"status": "success", "key": str(video_id)}


@shared_task(base=OnceTask, key="hold:{key}", on_conflict="queue", queue_limit=3, **BY_SETTINGS)
def short_queue(key: str, seconds: float = 0.0, until: str | None = None, **more: Any) -> dict[str, Any]:
    """At most three wait."""
    return hold_here(key, seconds, until, **more)


@shared_task(base=OnceTask, key="hold:{key}", on_conflict="queue", bind=True, **BY_SETTINGS)
def counting_queue(self: Any, key: str, seconds: float = 0.0, until: str | None = None, **more: Any) -> dict[str, Any]:
    """Tells what it was sent with."""
    request = self.request
    note(
        "request",
        key,
        headers={name: value for name, value in (request.headers or {}).items() if name != "tasklock"},
        priority=request.delivery_info.get("priority"),
        queue=request.delivery_info.get("routing_key"),
        args=repr(request.args),
        kwargs=repr(request.kwargs),
        limits=request.timelimit,
        retries=request.retries,
    )
    return hold_here(key, seconds, until)


def _pages(word: str) -> None:
    """A task of which each page replaces itself by the next one."""

    @shared_task(name=f"{__name__}.{word}_pages", base=OnceTask, key="hold:{key}", on_conflict=word, bind=True)
    def pages(self: Any, key: str, number: int, page: int = 0, until: str | None = None) -> list[int]:
        note("page", key, number=number, page=page)
        if until is not None:
            hold_here(key, until=until)
        if page < 2:
            raise self.replace(self.s(key, number, page + 1))
        return [number, page]


for _word in ("queue", "coalesce", "reject"):
    _pages(_word)


@shared_task
@model_lock(Video, "video:{video_id}", guard=GUARD, pk="video_id", on_conflict="coalesce")
def coalescing_video(video_id: int, seconds: float = 0.0, until: str | None = None) -> dict[str, Any]:
    """A decorated, guarded task of which at most one waits."""
    return hold_here(video_id, seconds, until)


@shared_task
def told(result: Any, key: str = "told") -> Any:
    """A callback: writes down what it was told."""
    note("told", key, result=result)
    return result
