"""The Celery app of the benchmark ``queue``: that of ``tasks``, with a task that lines up and one that has no lock."""

from __future__ import annotations

import time
from typing import Any

from django.db.backends.signals import connection_created

from benchmarks.tasks_app import app
from django_tasklock.celery import OnceTask

__all__ = ["DONE", "app", "line", "other"]

DONE = "latencies"


@connection_created.connect
def settle(connection: Any, **details: Any) -> None:
    """SQLite as a busy site would have it: otherwise the disk alone is measured."""
    with connection.cursor() as cursor:
        cursor.execute("PRAGMA journal_mode = WAL")
        cursor.execute("PRAGMA synchronous = NORMAL")


@app.task(name="line", base=OnceTask, acks_late=None, key="line:{key}", on_conflict="queue")
def line(key: str, seconds: float) -> None:
    """One of those that wait for each other."""
    time.sleep(seconds)
    app.backend.client.incr("lined")


@app.task(name="other", base=OnceTask, acks_late=None, key="other:{number}", on_conflict="queue")
def other(number: int, published: float) -> None:
    """One that has nothing to do with them: notes how long after its publication it began."""
    app.backend.client.rpush(DONE, time.monotonic() - published)
