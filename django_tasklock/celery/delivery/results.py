"""Evidence in the result backend that a message's work is done."""

from __future__ import annotations

import logging
from datetime import UTC, datetime

from celery.utils.time import maybe_iso8601

from django_tasklock.celery.message import Message
from django_tasklock.exceptions import CrashLoop

logger = logging.getLogger("django_tasklock")

SKEW = 5.0  # seconds by which the clocks of two machines may differ


def finished_reason(message: Message) -> str:
    """Return how another delivery of this message ended, if it must not be started again; otherwise an empty text.

    Only results since the publication of the message count, as task ids are reused.
    """
    try:
        meta = message.task.backend.get_task_meta(message.id, cache=False)
        if meta.get("status") == "SUCCESS":
            reason = "it has succeeded"
        elif isinstance(meta.get("result"), CrashLoop):
            reason = "too many workers have died of it"
        else:
            return ""
        done = seconds_since_1970(meta.get("date_done"))
    except Exception as error:  # no result backend, or it is down: the lock and the guard decide
        logger.debug("%s[%s]: no result could be read: %s", message.task.name, message.id, error)
        return ""
    return reason if done is None or message.published is None or done > message.published - SKEW else ""


def seconds_since_1970(moment: object) -> float | None:
    """Convert a time from a result backend, a datetime or its text; UTC if it has no time zone."""
    if not isinstance(moment, datetime | str):
        return None
    found = maybe_iso8601(moment)
    if not isinstance(found, datetime):
        return None
    return (found if found.tzinfo else found.replace(tzinfo=UTC)).timestamp()
