"""Unique tasks, and the one of source 004."""

from __future__ import annotations

import os
from typing import Any

from celery import shared_task

from django_tasklock.celery import OnceTask
from tests.support.celery_site.journal import ENVIRONMENT
from tests.support.celery_site.tasks import BY_SETTINGS, hold_here

__all__ = ["source_test"]


@shared_task(name="tasks1", base=OnceTask, **BY_SETTINGS)
def source_test(*args: Any, **kwargs: Any) -> dict[str, Any]:
    """``test`` of source 004, which sleeps for a minute there; here until the test has seen enough."""
    return hold_here("tasks1", until=f"{os.environ[ENVIRONMENT]}.gate", args=args, kwargs=kwargs)
