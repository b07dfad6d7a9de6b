"""The Celery app of the benchmark ``limited_tasks``: that of ``tasks``, limited tasks, and one of another queue."""

from __future__ import annotations

import time
from typing import Any

from benchmarks.tasks_app import app
from django_tasklock import rate_limited

__all__ = ["BEGAN", "DONE", "KINDS", "LIMIT", "WINDOW", "app", "other"]

BEGAN, DONE = "began", "latencies"
LIMIT, WINDOW = 100, 1.0


@app.task(name="limited", max_retries=0)
@rate_limited("bench", (LIMIT, WINDOW))
def limited(number: int) -> None:
    """Notes when it began."""
    app.backend.client.rpush(BEGAN, time.monotonic())


@app.task(name="retried", bind=True)
def retried(self: Any, number: int) -> None:
    """The floor: it knows its time without asking anybody, and does nothing but ``retry()`` until then."""
    if self.request.retries == 0:
        raise self.retry(countdown=number * WINDOW / LIMIT)
    app.backend.client.rpush(BEGAN, time.monotonic())


@app.task(name="other")
def other(published: float) -> None:
    """Has nothing to do with them: notes how long after its publication it began."""
    app.backend.client.rpush(DONE, time.monotonic() - published)


KINDS = {"rate_limited": limited, "retry(countdown)": retried}
"""By label."""
