"""Cleaning up after the run of a message, when its result is stored."""

from __future__ import annotations

import logging
from typing import Any

from django_tasklock.backends import get_backend
from django_tasklock.celery.state import STATE, state_of
from django_tasklock.locks import holder as holders

logger = logging.getLogger("django_tasklock")

AGAIN = "again:"
"""The beginning of the name, before the task's id, of the note that another delivery has kept a row for this one."""


def clean_up_after(request: Any, sure: bool) -> None:
    """Let the row of this message be removed when its run is over. ``sure``: it may have one without a note."""
    state = state_of(request)
    state.has_row = sure or bool(state.has_row)


def on_postrun(sender: Any = None, task_id: str = "", **details: Any) -> None:
    """Remove the row, now that the result is stored (``task_postrun``): before, a crash would have needed it."""
    state = sender.request.__dict__.get(STATE)
    if state is None or state.has_row is None:
        return
    sure, state.has_row = state.has_row, None
    from django_tasklock.celery.parking import store as parking  # it touches models, which early imports must not
    from django_tasklock.celery.parking.rows import DOWN, brief_connection

    try:
        if sure or get_backend().flagged(AGAIN + task_id):
            with brief_connection():
                parking.remove(task_id, of=holders.BOOT)
    except DOWN as error:
        logger.warning("%s[%s]: its row was not removed: %s", sender.name, task_id, error)
