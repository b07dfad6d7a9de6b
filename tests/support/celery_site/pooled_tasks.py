"""Guarded tasks whose worker talks to the database through Django's pool, where there is one."""

from __future__ import annotations

import os
from typing import Any

from celery import shared_task, signals
from django.conf import settings
from django.db import connection, connections

from django_tasklock import current_claim, model_lock, release_connections
from tests.support.celery_site.journal import journaled, note
from tests.support.guards import ONCE
from tests.testapp.models import Video

__all__ = ["pooled_video"]

IN_WORKER = os.environ.get("DJANGO_SETTINGS_MODULE", "").startswith("tests.support")

if IN_WORKER and connection.vendor == "postgresql":
    settings.DATABASES["default"].setdefault("OPTIONS", {})["pool"] = {"min_size": 2, "max_size": 4, "timeout": 10}


def session() -> int:
    """The server's number for the connection of this thread."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_backend_pid()" if connection.vendor == "postgresql" else "SELECT 0")
        return int(cursor.fetchone()[0])


@signals.worker_ready.connect
def opens_its_pool(**details: Any) -> None:
    """As our own threads in a worker's main process do: what is forked later inherits it."""
    if IN_WORKER:
        note("main", sessions=[session()])
        release_connections()


@shared_task
@model_lock(Video, "pooled:{video_id}", guard=ONCE, pk="video_id", release_connections=True)
def pooled_video(video_id: int) -> dict[str, int]:
    """Uses the database in the middle, and holds no connection before or after."""
    with journaled(video_id):
        before = connections["default"].connection is not None
        note("used", video_id, session=session())
        release_connections()
        current_claim().update(progress=40)
        after = connections["default"].connection is not None
    return {"before": before, "after": after}
