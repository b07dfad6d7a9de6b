"""The Celery integration: ``OnceTask``, and what the decorators can do inside a worker.

Importing this package touches no model, so a project's ``celery.py`` may import it.
"""

from django_tasklock.celery.options import Once
from django_tasklock.celery.queue.operators import ParkedInfo, count_parked, parked_messages
from django_tasklock.celery.rates import spread
from django_tasklock.celery.task import OnceTask

__all__ = ["Once", "OnceTask", "ParkedInfo", "count_parked", "parked_messages", "spread"]
