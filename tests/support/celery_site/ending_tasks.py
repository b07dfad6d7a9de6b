"""Tasks that end as they are told: guarded ones, and ones that line up, each as a ``OnceTask`` and decorated."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

from celery import shared_task
from celery.exceptions import Ignore, Reject

from django_tasklock import StateGuard, model_lock, task_lock
from django_tasklock.celery import OnceTask
from tests.support.celery_site.journal import journaled, note
from tests.support.celery_site.tasks import BY_SETTINGS, LONGEST
from tests.testapp.models import Track, Video

__all__ = ["helped", "locked_line", "locked_video", "once_line", "once_track", "once_video"]

GUARD = StateGuard(
    claim_from=["uploading", "processing"], claim_as="processing", done="ready", failed="failed", retry="uploading"
)
"""The row shows how its body ended: ``ready``, ``failed``, ``uploading`` (given back), ``processing`` (not closed)."""
_OPTIONS: dict[str, Any] = {
    **BY_SETTINGS,
    "bind": True,
    "autoretry_for": (ConnectionError,),
    "default_retry_delay": 0.5,
    "takeovers": 1,
}


def end(task: Any, key: object, how: str, until: str | None) -> str:
    """The body: waits for the file ``until``, if somebody does not end it before, then ends as ``how`` says.

    ``"retries 5"``, ``"autoretries 5"``: to come back in 5 s. What comes back returns.
    """
    again = task.request.retries or (task.request.delivery_info or {}).get("redelivered")
    how, _, seconds = how.partition(" ")
    with journaled(key):
        if how == "deaf":  # to everything but SIGKILL
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
        if how == "hogs":  # a call into C that does not let anybody else run
            ctypes.PyDLL(None).usleep(round(float(seconds) * 1_000_000))
        sit(key, until)
        match how:
            case "dies":
                os.kill(os.getpid(), signal.SIGKILL)
            case "raises":
                raise ValueError("no")
            case "ignores":
                raise Ignore("no")
            case "rejects":
                raise Reject("no")
            case "exits":
                sys.exit(3)
            case "requeues" if not again:
                raise Reject("later", requeue=True)
            case "retries" if not again:
                raise task.retry(countdown=float(seconds or 0.5))
            case "autoretries" if not again:
                task.default_retry_delay = float(seconds or task.default_retry_delay)
                raise ConnectionError("later")
    return how


def sit(key: object, until: str | None) -> None:
    """Wait for the file, and say again and again that somebody is still here."""
    ends = time.monotonic() + LONGEST
    while until is not None and not Path(until).exists():
        assert time.monotonic() < ends, until
        note("lives", key)
        time.sleep(0.02)


@shared_task(
    base=OnceTask, key="video:{video_id}", unique="until_finish", guard=GUARD, model=Video, pk="video_id",
    **_OPTIONS,
)  # fmt: skip
def once_video(self: Any, video_id: int, how: str = "returns", until: str | None = None) -> str:
    """Claims the row; another message may not be published meanwhile."""
    return end(self, video_id, how, until)


@shared_task(**_OPTIONS)
@model_lock(Video, "video:{video_id}", pk="video_id", guard=GUARD)
def locked_video(self: Any, video_id: int, how: str = "returns", until: str | None = None) -> str:
    """Claims the row."""
    return end(self, video_id, how, until)


@model_lock(Video, "helper:{video_id}", pk="video_id", guard=GUARD)
def help_with(video_id: int, task: Any, how: str, until: str | None) -> str:
    """Claims the row."""
    return end(task, video_id, how, until)


@shared_task(**_OPTIONS)
def helped(self: Any, video_id: int, how: str = "returns", until: str | None = None) -> str:
    """Has no lock: a helper claims the row."""
    return str(help_with(video_id, self, how, until))


@shared_task(base=OnceTask, guard=GUARD, model=Track, lookup="uid", **_OPTIONS)
def once_track(self: Any, uid: str, how: str = "returns", until: str | None = None) -> str:
    """A row that is known by its public id."""
    return end(self, uid, how, until)


@shared_task(base=OnceTask, key="line:{key}", on_conflict="queue", **_OPTIONS)
def once_line(self: Any, key: str, how: str = "returns", until: str | None = None) -> str:
    """Parked if busy."""
    return end(self, key, how, until)


@shared_task(**_OPTIONS)
@task_lock("line:{key}", on_conflict="queue")
def locked_line(self: Any, key: str, how: str = "returns", until: str | None = None) -> str:
    """Parked if busy."""
    return end(self, key, how, until)
