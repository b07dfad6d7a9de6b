"""Evidence in the result backend that a message's work is done."""

from __future__ import annotations

import logging
from datetime import UTC, datetime

from celery.utils.time import maybe_iso8601

from django_tasklock.celery.message import Message
from django_tasklock.exceptions import CrashLoop

logger = logging.getLogger("django_tasklock")

SKEW = 5.0  # seconds by which the clocks of two machines may differ


def how_it_ended(message: Message) -> str:
    """Return what another delivery of this message came to, if none may be started after that; else nothing.

    It was since the message was published, as task ids are used again.
    """
    try:
        meta = message.task.backend.get_task_meta(message.id, cache=False)
        if meta.get("status") == "SUCCESS":
            how = "it has succeeded"
        elif isinstance(meta.get("result"), CrashLoop):
            how = "too many workers have died of it"
        else:
            return ""
        done = seconds_since_1970(meta.get("date_done"))
    except Exception as error:  # no result backend, or one that is down: then the lock and the guard judge
        logger.debug("%s[%s]: no result to look at: %s", message.task.name, message.id, error)
        return ""
    return how if done is None or message.published is None or done > message.published - SKEW else ""


def seconds_since_1970(moment: object) -> float | None:
    """Convert what a result backend has for a time, a datetime or its text. Without a time zone it is UTC."""
    if not isinstance(moment, datetime | str):
        return None
    found = maybe_iso8601(moment)
    if not isinstance(found, datetime):
        return None
    return (found if found.tzinfo else found.replace(tzinfo=UTC)).timestamp()
