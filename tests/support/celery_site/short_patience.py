"""For ``SITE_TASKS``: a worker that gives back what waits for slots that hang within seconds, not minutes."""

from __future__ import annotations

from django_tasklock.celery.messages import progress

progress.SLOTS_TIMEOUT = 3.0
