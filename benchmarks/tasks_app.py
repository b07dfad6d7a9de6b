"""The Celery app of ``tasks``, for its workers, too: one body that does next to nothing, under each lock."""

from __future__ import annotations

import importlib
import os
from typing import Any

from celery import Celery, Task

from benchmarks.project import URL, configure

__all__ = ["COUNTER", "KINDS", "NO_LOCK", "app"]

configure()

from django_tasklock import task_lock  # noqa: E402  (after Django is set up)
from django_tasklock.celery import OnceTask  # noqa: E402

COUNTER = "done"
NO_LOCK = "no lock"

url = os.environ[URL]
app = Celery("benchmarks", broker=url, backend=url, set_as_current=True)
app.conf.update(
    task_ignore_result=True,
    broker_connection_retry_on_startup=True,
    worker_hijack_root_logger=False,
    singleton_backend_url=url,
    ONCE={"backend": "celery_once.backends.Redis", "settings": {"url": url, "default_timeout": 60}},
)


def body(number: int) -> None:
    """Count the run."""
    app.backend.client.incr(COUNTER)


def once(name: str, **options: Any) -> Task:
    """An ``OnceTask``, which is acknowledged early like all others here."""
    return app.task(name=name, base=OnceTask, acks_late=None, **options)(body)


KINDS: dict[str, Any] = {
    NO_LOCK: app.task(name="plain")(body),
    "OnceTask": once("once", key="once:{number}"),
    "OnceTask, queue": once("queue", key="queue:{number}", on_conflict="queue"),
    "OnceTask, unique": once("unique", key="unique:{number}", unique="until_finish"),
    "task_lock": app.task(name="decorated")(task_lock("decorated:{number}")(body)),
}
"""The tasks by label, those of the others if they are installed."""
for label, module, base, options in (
    ("celery-once", "celery_once", "QueueOnce", {"once": {"timeout": 60}}),
    ("celery-singleton", "celery_singleton", "Singleton", {"lock_expiry": 60}),
):
    try:
        KINDS[label] = app.task(name=label, base=getattr(importlib.import_module(module), base), **options)(body)
    except ImportError:
        continue
