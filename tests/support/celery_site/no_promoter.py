"""For ``SITE_TASKS``: workers that do not look for what was left behind. What is promoted was promoted by an end."""

from __future__ import annotations

from django_tasklock.celery.queue import promoter as promotion

promotion.PERIOD = 3600.0
