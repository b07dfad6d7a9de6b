"""Tasks that have ended, and whose child or worker is then killed before it can acknowledge the message: once each."""

from __future__ import annotations

import os
import signal
import time
from typing import Any

from celery import shared_task, signals

from django_tasklock import task_lock
from django_tasklock.celery import OnceTask
from tests.support.celery_site.journal import note

__all__ = ["struck_locked", "struck_once"]

_OPTIONS: dict[str, Any] = {"acks_late": True, "reject_on_worker_lost": True, "ignore_result": True}


@shared_task(base=OnceTask, key="struck:{key}", **_OPTIONS)
def struck_once(key: str, who: str, how: str) -> None:
    """Returns or raises, as ``how`` says; ``who`` is killed."""
    end(key, how)


@shared_task(**_OPTIONS)
@task_lock("struck:{key}")
def struck_locked(key: str, who: str, how: str) -> None:
    """Returns or raises, as ``how`` says; ``who`` is killed."""
    end(key, how)


def end(key: str, how: str) -> None:
    """The body."""
    note("start", key)
    if how == "raises":
        raise ValueError("no")


@signals.task_success.connect
@signals.task_failure.connect
def strike(sender: Any = None, **details: Any) -> None:
    """Kill the child or its worker."""
    request = sender.request
    if sender.name.startswith(__name__) and not (request.delivery_info or {}).get("redelivered"):
        note("struck", request.args[0])
        os.kill(os.getpid() if request.args[1] == "child" else os.getppid(), signal.SIGKILL)
        time.sleep(60)  # the kernel kills this child with its worker
