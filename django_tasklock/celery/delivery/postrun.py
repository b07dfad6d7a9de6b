"""Removing the row of a message after its result was stored."""

from __future__ import annotations

import logging
from typing import Any

from django_tasklock.backends import get_backend
from django_tasklock.celery.state import STATE
from django_tasklock.locks import holder as holders

logger = logging.getLogger("django_tasklock")

ROW_FLAG = "again:"
"""Prefix of the name of the flag, before the task's id, that another delivery sets once it has written a row."""


def on_postrun(sender: Any = None, task_id: str = "", **details: Any) -> None:
    """Remove the row, now that the result is stored (``task_postrun``): a crash before that would need it."""
    state = sender.request.__dict__.get(STATE)
    if state is None or state.remove_row is None:
        return
    sure, state.remove_row = state.remove_row, None
    from django_tasklock.celery.parking import store as parking  # imports models, which must not be imported early
    from django_tasklock.celery.parking.rows import DOWN, brief_connection

    try:
        if sure or get_backend().clear_flag(ROW_FLAG + task_id):
            with brief_connection():
                parking.remove(task_id, of=holders.boot())
    except DOWN as error:
        logger.warning("%s[%s]: its row was not removed: %s", sender.name, task_id, error)
