"""Tasks that do nothing but hold on, until the test lets them go. Declared plain, locked and guarded.

Other modules add their own and name them in ``SITE_TASKS``; their bodies are one call of ``hold_here``.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from celery import shared_task

from django_tasklock import current_claim, model_lock, task_lock
from tests.support.celery_site.journal import journaled
from tests.support.guards import GUARD
from tests.testapp.models import Video

__all__ = ["BY_SETTINGS", "guarded_hold", "hold", "hold_here", "locked_hold", "waiting_hold"]

LONGEST = 120.0  # seconds for which a gate may stay closed: nobody holds on for a test that is gone
BY_SETTINGS: dict[str, Any] = {"acks_late": None, "reject_on_worker_lost": None}
"""Options of a ``OnceTask`` that is acknowledged early, unless the test configures its workers otherwise."""


def hold_here(key: object, seconds: float = 0.0, until: str | None = None, **more: Any) -> dict[str, Any]:
    """Sleep for ``seconds``, then wait for the file ``until``; with ``start`` and ``end`` in the journal."""
    with journaled(key, **more):
        time.sleep(seconds)
        ends = time.monotonic() + LONGEST
        while until is not None and not Path(until).exists():
            if time.monotonic() > ends:
                raise TimeoutError(until)
            time.sleep(0.01)
    return {"status": "success", "key": key}


@shared_task
def hold(key: str, seconds: float = 0.0, until: str | None = None) -> dict[str, Any]:
    """Knows nothing of locks."""
    return hold_here(key, seconds, until)


@shared_task
@task_lock("hold:{key}")
def locked_hold(key: str, seconds: float = 0.0, until: str | None = None) -> dict[str, Any]:
    """Skips if the lock ``hold:KEY`` is busy."""
    return hold_here(key, seconds, until)


@shared_task
@task_lock("hold:{key}", on_conflict="wait")
def waiting_hold(key: str, seconds: float = 0.0, until: str | None = None) -> dict[str, Any]:
    """The same lock; waits if it is busy."""
    return hold_here(key, seconds, until)


@shared_task
@model_lock(Video, "video:{video_id}", pk="video_id", guard=GUARD)
def guarded_hold(video_id: int, seconds: float = 0.0, until: str | None = None) -> dict[str, Any]:
    """Claims the row, writes to it at the end: the lock ``video:PK``."""
    answer = hold_here(video_id, seconds, until)
    claim = current_claim()
    assert claim is not None
    claim.update(progress=100)
    return answer
