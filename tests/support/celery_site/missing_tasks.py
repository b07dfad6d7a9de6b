"""Guarded tasks whose rows may be missing, as a ``OnceTask`` and decorated."""

from __future__ import annotations

from typing import Any

from celery import shared_task

from django_tasklock import StateGuard, model_lock
from django_tasklock.celery import OnceTask
from tests.support.celery_site.tasks import hold_here
from tests.testapp.models import Video

__all__ = ["locked_row", "once_row"]

GUARD = StateGuard(claim_from=["uploading"], claim_as="processing", done="ready", missing_timeout=300)


@shared_task(max_retries=0)
@model_lock(Video, "video:{pk}", guard=GUARD)
def locked_row(pk: int) -> dict[str, Any]:
    """Waits for as long as any test needs."""
    return hold_here(pk)


@shared_task(base=OnceTask, key="video:{pk}", guard=GUARD, model=Video, max_retries=0)
def once_row(pk: int) -> dict[str, Any]:
    """The same."""
    return hold_here(pk)
