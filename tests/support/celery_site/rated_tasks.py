"""Tasks with a rate limit."""

from __future__ import annotations

from typing import Any

from celery import shared_task

from django_tasklock import RateLimiter, rate_limited, task_lock
from tests.support.celery_site.tasks import hold_here

__all__ = [
    "rated_both",
    "rated_coalesced",
    "rated_fast",
    "rated_late",
    "rated_slow",
]


@shared_task(max_retries=0)
@rate_limited("fast", "20/s", margin=0.2)
def rated_fast(key: str) -> dict[str, Any]:
    """Twenty a second; on a busy machine a body may note its start much later than it was let go."""
    return hold_here(key)


@shared_task(max_retries=0)
@rate_limited(
    RateLimiter("both", "20/s", margin=0.2).together_with(RateLimiter("both:tokens", "60/s", margin=0.2)),
    cost=lambda key: {"both:tokens": 2 + int(key) % 3},
)
def rated_both(key: str) -> dict[str, Any]:
    """Twenty a second, and sixty tokens."""
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


@shared_task
@task_lock("coalesced", on_conflict="coalesce")
@rate_limited("coalesced", "1/2s")
def rated_coalesced(number: int) -> dict[str, Any]:
    """The newest is the one that counts."""
    return hold_here(number)
