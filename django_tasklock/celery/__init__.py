"""For Celery: ``OnceTask``, and what the decorators can do when a worker runs them.

Importing it touches no model, so a project's ``celery.py`` may.
"""

import celery  # noqa: F401  # first of all: the app's ``install`` may hang on it, which imports what follows

from django_tasklock.celery.once import Once
from django_tasklock.celery.parking.listing import ParkedInfo, count_parked, parked_messages
from django_tasklock.celery.rates.spread import spread
from django_tasklock.celery.task import OnceTask

__all__ = ["Once", "OnceTask", "ParkedInfo", "count_parked", "parked_messages", "spread"]
