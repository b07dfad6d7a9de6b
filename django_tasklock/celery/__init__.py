"""For Celery: ``OnceTask``, and what the decorators can do when a worker runs them.

Importing it touches no model, so a project's ``celery.py`` may.
"""

from django_tasklock.celery.calls import Once
from django_tasklock.celery.listing import ParkedInfo, count_parked, parked_messages
from django_tasklock.celery.once import OnceTask
from django_tasklock.celery.spreading import spread

__all__ = ["Once", "OnceTask", "ParkedInfo", "count_parked", "parked_messages", "spread"]
