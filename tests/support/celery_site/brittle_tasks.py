"""For ``SITE_TASKS``: a task whose message is not started again if its process dies."""

from __future__ import annotations

from typing import Any

from celery import shared_task

from django_tasklock.celery import OnceTask
from tests.support.celery_site.tasks import hold_here

__all__ = ["brittle_hold"]


@shared_task(base=OnceTask, key="hold:{key}", takeovers=0)
def brittle_hold(key: str, seconds: float = 0.0, until: str | None = None, **more: Any) -> dict[str, Any]:
    """Fails with ``CrashLoop`` instead."""
    return hold_here(key, seconds, until, **more)
