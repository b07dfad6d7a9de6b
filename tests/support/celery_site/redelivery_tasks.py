"""Tasks that are delivered, or tried, more than once. Every word, and both ways to say it.

``SITE_MACHINE`` lets a worker's processes take themselves for those of another machine. It is read when this module is
imported, so set it before a worker is started.
"""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path
from typing import Any

from celery import shared_task
from django.dispatch import receiver

from django_tasklock import model_lock, task_lock
from django_tasklock.celery import OnceTask
from django_tasklock.conf import WORDS
from django_tasklock.locks import holder as holders
from django_tasklock.signals import lock_conflict
from tests.support.celery_site.configuration import ENVIRONMENT
from tests.support.celery_site.journal import note
from tests.support.celery_site.tasks import BY_SETTINGS, LONGEST, hold_here
from tests.support.guards import GUARD
from tests.testapp.models import Video

MACHINE = "SITE_MACHINE"
LATE: dict[str, Any] = {"acks_late": True, "reject_on_worker_lost": True}


def wait_for(file: str) -> None:
    """Until somebody makes it."""
    ends = time.monotonic() + LONGEST
    while not Path(file).exists():
        assert time.monotonic() < ends, file
        time.sleep(0.01)


if os.environ.get(MACHINE):
    holders.this_machine = lambda: os.environ[MACHINE]  # type: ignore[assignment]


@shared_task(base=OnceTask, key="hold:{key}")
def late_once(key: str, seconds: float = 0.0, until: str | None = None, **more: Any) -> dict[str, Any]:
    """Comes back if its worker dies; the caller says the word."""
    return hold_here(key, seconds, until, **more)


@shared_task(takeovers=1, **LATE)
@model_lock(Video, "video:{video_id}", pk="video_id", guard=GUARD, on_conflict="queue")
def frail_video(video_id: int, until: str | None = None) -> dict[str, Any]:
    """May be started twice."""
    return hold_here(video_id, 0.0, until)


def _decorated(word: Any) -> Any:
    @shared_task(name=f"{__name__}.late_{word}", **LATE)
    @task_lock("hold:{key}", on_conflict=word)
    def late(key: str, seconds: float = 0.0, until: str | None = None, **more: Any) -> dict[str, Any]:
        return hold_here(key, seconds, until, **more)

    @shared_task(name=f"{__name__}.early_{word}", autoretry_for=(Exception,), max_retries=1, default_retry_delay=0)
    @task_lock("hold:{key}", on_conflict=word)
    def early(key: str, seconds: float = 0.0, until: str | None = None, **more: Any) -> dict[str, Any]:
        return hold_here(key, seconds, until, **more)

    return late, early


DECORATED = {word: _decorated(word) for word in WORDS}


@task_lock("hold:{key}", on_conflict="skip")
def helper(key: str, until: str | None) -> dict[str, Any]:
    """Locked, and no task."""
    return hold_here(key, 0.0, until)


@task_lock("hold:{key}", on_conflict="skip")
async def async_helper(key: str, until: str | None) -> dict[str, Any]:
    """The same for coroutines."""
    return hold_here(key, 0.0, until)


@shared_task(**LATE)
def outer(key: str, until: str | None = None) -> dict[str, Any]:
    """Calls a locked function."""
    return helper(key, until)


@shared_task(**LATE)
def async_outer(key: str, until: str | None = None) -> dict[str, Any]:
    """Runs a locked coroutine."""
    return asyncio.run(async_helper(key, until))


@shared_task(base=OnceTask, bind=True, key="hold:{key}", max_retries=3)
def retrying(
    self: Any, key: str, countdown: float = 0.0, until: str | None = None, leave: str | None = None
) -> dict[str, Any]:
    """Retries once, and stays until ``leave`` after its ``retry()``."""
    header = self.request.get("tasklock") or {}
    note("try", key, retries=self.request.retries)
    note("header", key, unique=header.get("unique"))
    if self.request.retries:
        return hold_here(key, 0.0, until, retries=self.request.retries)
    answer = self.retry(countdown=countdown, throw=False)
    if leave is not None:  # the next try comes while this one still has the lock
        wait_for(leave)
    raise answer


@shared_task(base=OnceTask, bind=True, key="hold:{key}")
def replaced(self: Any, key: str, page: int = 0, leave: str | None = None) -> Any:
    """Its next page takes its place, and may come before this one has left."""
    note("page", key, page=page)
    if page == 2:
        return hold_here(key)
    try:
        raise self.replace(replaced.s(key, page + 1, leave))
    finally:
        if leave is not None:
            wait_for(leave)


@shared_task
def collect(results: list[dict[str, Any]], key: str) -> list[dict[str, Any]]:
    """The body of a chord, and the end of a chain."""
    note("collected", key)
    return results


@shared_task
def linked(result: Any, key: str) -> None:
    """A callback."""
    note("linked", key)


@shared_task(base=OnceTask, bind=True, key="hold:{key}", on_conflict="retry", max_retries=0, **BY_SETTINGS)
def patient(self: Any, key: str, until: str | None = None) -> dict[str, Any]:
    """Put off while it is busy; has no retries of its own."""
    delivery = self.request.delivery_info
    return hold_here(
        key, 0.0, until, retries=self.request.retries, priority=delivery["priority"], queue=delivery["routing_key"]
    )


@shared_task
def direct(word: str, key: str) -> str:
    """Calls a decorated task inside of its own body, and says what became of it."""
    try:
        return str(DECORATED[word][0](key)["status"])
    except Exception as error:
        return type(error).__name__


@receiver(lock_conflict, dispatch_uid="redelivery_tasks")
def _conflict(sender: Any = None, action: str = "", **details: Any) -> None:
    """Let the test see the conflicts of its worker's processes."""
    if ENVIRONMENT in os.environ:
        note("conflict", action)
