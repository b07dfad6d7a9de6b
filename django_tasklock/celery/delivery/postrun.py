"""Cleaning up after the run of a message, when its result is stored."""

from __future__ import annotations

import logging
from collections.abc import Collection
from typing import Any

from django_tasklock.backends import get_backend
from django_tasklock.celery.message import Message
from django_tasklock.locks import holder as holders

logger = logging.getLogger("django_tasklock")

AGAIN = "again:"
"""The beginning of the name, before the task's id, of the note that another delivery has kept a row for this one."""


def clean_up_after(request: Any, sure: bool) -> None:
    """Let the row of this message be removed when its run is over. ``sure``: it may have one without a note."""
    request.__dict__["tasklock_ended"] = sure or request.__dict__.get("tasklock_ended", False)


def note(message: Message, noted: Collection[str]) -> None:
    """Take over what the release of its lock has shown: whether there is a note about the message."""
    values = message.request.__dict__
    if AGAIN + message.id in noted:
        values["tasklock_ended"] = True
    elif values.get("tasklock_ended") is False:
        del values["tasklock_ended"]


def on_postrun(sender: Any = None, task_id: str = "", **details: Any) -> None:
    """Remove the row, now that the result is stored (``task_postrun``): before, a crash would have needed it."""
    sure = sender.request.__dict__.pop("tasklock_ended", None)
    if sure is None:
        return
    from django_tasklock.celery.parking import store as parking  # it touches models, which early imports must not
    from django_tasklock.celery.parking.rows import DOWN

    try:
        if sure or get_backend().flagged(AGAIN + task_id):
            with parking.brief_connection():
                parking.remove(task_id, of=holders.BOOT)
    except DOWN as error:
        logger.warning("%s[%s]: its row was not removed: %s", sender.name, task_id, error)
