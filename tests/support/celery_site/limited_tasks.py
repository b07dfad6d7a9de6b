"""Tasks with a concurrency limiter of one or two permits, for every word."""

from __future__ import annotations

from typing import Any

from celery import shared_task

from django_tasklock import concurrency_limited
from tests.support.celery_site.tasks import hold_here

__all__ = [
    "inside_limited",
    "limited",
    "limited_raise",
    "limited_reject",
    "limited_skip",
]


@shared_task(max_retries=0)
@concurrency_limited("transcode", 2)
def limited(key: str, seconds: float = 0.0, until: str | None = None) -> dict[str, Any]:
    """Two at once; what is refused comes again by itself."""
    return hold_here(key, seconds, until)


@shared_task(acks_late=True, reject_on_worker_lost=True)
@concurrency_limited("single", 1, on_conflict="skip")
def limited_skip(key: str, seconds: float = 0.0, until: str | None = None) -> dict[str, Any]:
    """One at once."""
    return hold_here(key, seconds, until)


@shared_task
@concurrency_limited("single", 1, on_conflict="raise")
def limited_raise(key: str, seconds: float = 0.0, until: str | None = None) -> dict[str, Any]:
    """The same limiter."""
    return hold_here(key, seconds, until)


@shared_task
@concurrency_limited("single", 1, on_conflict="reject")
def limited_reject(key: str, seconds: float = 0.0, until: str | None = None) -> dict[str, Any]:
    """The same limiter."""
    return hold_here(key, seconds, until)


@concurrency_limited("single", 1, on_conflict="retry")
def _helper(key: str) -> dict[str, Any]:
    return hold_here(key)


@shared_task
def inside_limited(key: str) -> dict[str, Any]:
    """Calls a limited function: its message is not that one's to put aside."""
    return _helper(key)
