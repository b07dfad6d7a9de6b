"""The Celery app of the benchmark ``message_lease``: plain tasks. The environment says what kind of project it is."""

from __future__ import annotations

import os
import time
from typing import Any

from celery import Celery

__all__ = ["DONE", "EVENTS", "KIND", "KINDS", "LEASE", "app", "long", "short"]

KIND = "TASKLOCK_BENCH_KIND"
URL = "TASKLOCK_BENCH_URL"
EVENTS, DONE = "events", "done"
LEASE = 6
LOOKING = {"unacked_restore_interval": 0.3, "unacked_restore_throttle": 1, "unacked_mutex_expire": 2}
KINDS: dict[str, dict[str, Any]] = {
    "bare Celery": {},
    f"bare Celery, visibility_timeout {LEASE} s": {"visibility_timeout": LEASE, **LOOKING},
    f"with the app, MESSAGE_LEASE {LEASE} s": {},
    "with the app, MESSAGE_LEASE 60 s": {},
}

url, kind = os.environ[URL], os.environ.get(KIND, "bare Celery")
if kind.startswith("with"):
    import django
    from django.conf import settings

    if not settings.configured:
        lease = {"LOCATION": url, "MESSAGE_LEASE": int(kind.split()[-2])}
        settings.configure(SECRET_KEY="benchmark", INSTALLED_APPS=["django_tasklock"], TASKLOCK=lease)
        django.setup()

app = Celery("benchmarks", broker=url, backend=url, set_as_current=True)
app.conf.update(
    task_ignore_result=True,
    task_acks_late=True,
    task_reject_on_worker_lost=True,
    broker_connection_retry_on_startup=True,
    broker_transport_options=KINDS[kind],
)


@app.task(name="long", bind=True)
def long(self: Any, seconds: float) -> None:
    """Take so long; note when, and where."""
    note = app.backend.client.rpush
    note(EVENTS, f"start {self.request.id} {os.getpgid(0)} {time.monotonic()}")
    time.sleep(seconds)
    note(EVENTS, f"end {self.request.id} {os.getpgid(0)} {time.monotonic()}")


@app.task(name="short")
def short() -> None:
    """Count the run."""
    app.backend.client.incr(DONE)
