"""Tasks with a rate limit, alone and together with locks and permits."""

from __future__ import annotations

from typing import Any

from celery import shared_task

from django_tasklock import concurrency_limited, model_lock, rate_limited, task_lock
from django_tasklock.celery import OnceTask
from tests.support.celery_site.journal import note
from tests.support.celery_site.tasks import BY_SETTINGS, hold_here
from tests.support.guards import GUARD
from tests.testapp.models import Video

__all__ = [
    "rated_fast",
    "rated_guarded",
    "rated_impatient",
    "rated_late",
    "rated_locked",
    "rated_once",
    "rated_permit",
    "rated_retrying",
    "rated_slow",
    "rated_tenant",
]


@shared_task(max_retries=0)
@rate_limited("fast", "20/s", margin=0.2)
def rated_fast(key: str) -> dict[str, Any]:
    """Twenty a second; on a busy machine a body may note its start much later than it was let go."""
    return hold_here(key)


@shared_task(max_retries=0)
@rate_limited("slow", "1/5m")
def rated_slow(key: str, until: str | None = None) -> dict[str, Any]:
    """Whoever is the second waits for longer than any test."""
    return hold_here(key, until=until)


@shared_task(acks_late=True, reject_on_worker_lost=True)
@rate_limited("late", "5/m")
def rated_late(key: str, until: str | None = None) -> dict[str, Any]:
    """Comes back if its process is killed."""
    return hold_here(key, until=until)


@shared_task(bind=True, max_retries=2, acks_late=True)
@rate_limited("five", "5/s")
def rated_retrying(self: Any, key: str, failures: int = 0) -> dict[str, Any]:
    """Fails so often, and is tried again at once."""
    answer = hold_here(key)
    if self.request.retries < failures:
        raise self.retry(countdown=0)
    return answer


@shared_task
@rate_limited("slow", "1/5m", timeout=30)
def rated_impatient(key: str) -> dict[str, Any]:
    """Does not wait for a minute."""
    return hold_here(key)


@shared_task
@task_lock("rated:{key}")
@rate_limited("slow", "1/5m")
def rated_locked(key: str) -> dict[str, Any]:
    """A limit inside of a lock that skips."""
    return hold_here(key)


@shared_task
@concurrency_limited("rated", 1)
@rate_limited("slow", "1/5m")
def rated_permit(key: str) -> dict[str, Any]:
    """A limit inside of a permit."""
    return hold_here(key)


@shared_task
@model_lock(Video, "video:{video_id}", pk="video_id", guard=GUARD)
@rate_limited("five", "5/s")
def rated_guarded(video_id: int) -> dict[str, Any]:
    """A limit inside of a lock and a claim."""
    return hold_here(video_id)


@shared_task(base=OnceTask, key="once:{key}", unique="until_start", **BY_SETTINGS)
@rate_limited("five", "5/s")
def rated_once(key: str) -> dict[str, Any]:
    """A limit inside of a lock, unique until it starts."""
    note("begins", key)
    return hold_here(key)


@shared_task
@rate_limited("api", "8/s", tenants="5/s", tenant="{customer}")
def rated_tenant(customer: str, key: str) -> dict[str, Any]:
    """Each customer has a quota of its own inside of that of all."""
    return hold_here(key)
