"""No task: in the workers of a site each lock that is taken, or given back, is written down in the journal."""

from __future__ import annotations

import os
from typing import Any

from django_tasklock.signals import lock_acquired, lock_released
from django_tasklock.types import Released
from tests.support.celery_site.configuration import ENVIRONMENT
from tests.support.celery_site.journal import note

__all__: list[str] = []


def _acquired(sender: str, **details: Any) -> None:
    note("acquired", sender)


def _released(sender: str, outcome: Released, **details: Any) -> None:
    note(outcome.value, sender)


if ENVIRONMENT in os.environ:
    lock_acquired.connect(_acquired)
    lock_released.connect(_released)
