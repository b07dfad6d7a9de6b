"""A task that takes its whole worker along."""

from __future__ import annotations

import os
import signal

from celery import shared_task

from django_tasklock.celery import OnceTask
from tests.support.celery_site.journal import note

__all__ = ["poison"]


@shared_task(base=OnceTask, key="poison:{key}", takeovers=2, acks_late=True, reject_on_worker_lost=True)
def poison(key: str) -> None:
    """Kills the group that its process is in: a worker of a test is one."""
    note("start", key)
    os.killpg(os.getpgid(0), signal.SIGKILL)
