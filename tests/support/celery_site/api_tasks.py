"""Tasks that are called in every way there is, and those of the unique tests."""

from __future__ import annotations

import os
from typing import Any

from celery import shared_task

from django_tasklock import current_lock
from django_tasklock.celery import OnceTask
from tests.support.celery_site.journal import ENVIRONMENT, note
from tests.support.celery_site.tasks import BY_SETTINGS, hold_here

__all__ = ["anything", "late_unique", "source_test", "unique_add", "unique_hold", "unique_retry", "unique_start"]


@shared_task(base=OnceTask, **BY_SETTINGS)
def anything(*args: Any, **kwargs: Any) -> dict[str, Any]:
    """Says what it was called with, and under which lock."""
    lock = current_lock()
    note("called", lock.name, args=args, kwargs=kwargs)
    return {"args": list(args), "kwargs": kwargs, "lock": lock.name}


@shared_task(name="tasks1", base=OnceTask, **BY_SETTINGS)
def source_test(*args: Any, **kwargs: Any) -> dict[str, Any]:
    """``test`` of source 004, which sleeps for a minute there; here until the test has seen enough."""
    return hold_here("tasks1", until=f"{os.environ[ENVIRONMENT]}.gate", args=args, kwargs=kwargs)


@shared_task(base=OnceTask, key="u:{key}", unique="until_finish", **BY_SETTINGS)
def unique_hold(key: str, seconds: float = 0.0, until: str | None = None, **more: Any) -> dict[str, Any]:
    """One under way until it has ended."""
    return hold_here(key, seconds, until, **more)


@shared_task(base=OnceTask, key="u:{key}", unique="until_start", on_conflict="queue", **BY_SETTINGS)
def unique_start(key: str, seconds: float = 0.0, until: str | None = None, **more: Any) -> dict[str, Any]:
    """One under way until it begins."""
    return hold_here(key, seconds, until, **more)


@shared_task(base=OnceTask, key="u:{key}", unique="until_finish")
def late_unique(key: str, seconds: float = 0.0, until: str | None = None, **more: Any) -> dict[str, Any]:
    """Comes back if its worker dies."""
    return hold_here(key, seconds, until, **more)


@shared_task(base=OnceTask, key="u:{key}", unique="until_finish", bind=True, max_retries=1, **BY_SETTINGS)
def unique_retry(self: Any, key: str, countdown: float, until: str | None = None) -> dict[str, Any]:
    """Tries twice."""
    if not self.request.retries:
        note("retry", key)
        raise self.retry(countdown=countdown)
    return hold_here(key, 0.0, until)


@shared_task(base=OnceTask, key="add:{x}", unique="until_finish", on_conflict="wait", **BY_SETTINGS)
def unique_add(x: int, y: int = 1) -> int:
    """For chains, groups and chords."""
    note("added", x)
    return (sum(x) if isinstance(x, list) else x) + y
