"""A guarded task of hours, in workers whose children keep their database connections; or pool them, where
``pooled_tasks`` was imported before.
"""

from __future__ import annotations

import os
from typing import Any

from celery import shared_task
from django.conf import settings

from django_tasklock import current_claim, model_lock
from tests.support.celery_site.tasks import hold_here
from tests.support.guards import ONCE
from tests.testapp.models import Note, Video

__all__ = ["hours"]

in_worker = os.environ.get("DJANGO_SETTINGS_MODULE", "").startswith("tests.support")
if in_worker and "pool" not in settings.DATABASES["default"].get("OPTIONS", {}):
    settings.DATABASES["default"]["CONN_MAX_AGE"] = None


@shared_task
@model_lock(Video, "hours:{video_id}", pk="video_id", guard=ONCE, release_connections=False)
def hours(video_id: int, until: str) -> dict[str, Any]:
    """Has a connection when its hours begin, and goes on with it when they are over."""
    Note.objects.count()
    hold_here(video_id, until=until)
    claim = current_claim()
    assert claim is not None
    claim.update(progress=90)
    return {"status": "success", "key": video_id}
