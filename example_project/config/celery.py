"""The Celery app: ``celery -A config worker``."""

from __future__ import annotations

import os

from celery import Celery

__all__ = ["app"]

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "config.settings")

app = Celery("video_site")
app.config_from_object("django.conf:settings", namespace="CELERY")
app.autodiscover_tasks()
