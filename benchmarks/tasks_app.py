"""The Celery app of the benchmark ``tasks``: one body that does next to nothing, under each lock.

Worker and publisher load it; where Redis and the database are stands in the environment.
"""

from __future__ import annotations

import importlib
import os
from typing import Any

import django
from celery import Celery, Task
from django.conf import settings

__all__ = ["DATABASE", "KINDS", "URL", "app"]

URL = "TASKLOCK_BENCH_URL"
DATABASE = "TASKLOCK_BENCH_DATABASE"
COUNTER = "done"

url = os.environ[URL]
if not settings.configured:
    settings.configure(
        SECRET_KEY="benchmark",
        USE_TZ=True,
        INSTALLED_APPS=["django_tasklock"],
        DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": os.environ[DATABASE]}},
        TASKLOCK={"LOCATION": url, "ON_UNAVAILABLE": "raise"},
        CACHES={"default": {"BACKEND": "django.core.cache.backends.locmem.LocMemCache"}},
    )
    django.setup()

from django_tasklock import task_lock  # noqa: E402  (after Django is set up)
from django_tasklock.celery import OnceTask  # noqa: E402

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


def base(module: str, name: str) -> type[Task] | None:
    """A peer's task base, if that is installed."""
    try:
        return getattr(importlib.import_module(module), name)  # type: ignore[no-any-return]
    except ImportError:
        return None


KINDS: dict[str, Any] = {"no lock": app.task(name="plain")(body)}
"""The tasks by label."""
KINDS["OnceTask"] = app.task(name="once", base=OnceTask, acks_late=None, key="once:{number}")(body)
KINDS["OnceTask, fingerprint"] = app.task(name="fingerprint", base=OnceTask, acks_late=None)(body)
KINDS["OnceTask, queue"] = app.task(
    name="queue", base=OnceTask, acks_late=None, key="queue:{number}", on_conflict="queue"
)(body)
KINDS["OnceTask, unique"] = app.task(
    name="unique", base=OnceTask, acks_late=None, key="unique:{number}", unique="until_finish"
)(body)
KINDS["task_lock"] = app.task(name="decorated")(task_lock("decorated:{number}")(body))
if (peer := base("celery_once", "QueueOnce")) is not None:
    KINDS["celery-once"] = app.task(name="celery_once", base=peer, once={"timeout": 60})(body)
if (peer := base("celery_singleton", "Singleton")) is not None:
    KINDS["celery-singleton"] = app.task(name="singleton", base=peer, lock_expiry=60)(body)
