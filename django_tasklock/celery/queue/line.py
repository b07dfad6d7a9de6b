"""The line of a lock: its messages that have not ended, by the sequence numbers that they drew at publication."""

from __future__ import annotations

import logging
import time

from django_tasklock.backends import get_backend
from django_tasklock.celery.message import Message
from django_tasklock.exceptions import BackendUnavailable

logger = logging.getLogger("django_tasklock")


def next_number(name: str = "", task_id: str = "") -> int:
    """Draw a sequence number and join the line, in the lock's store; if it is down, use this machine's clock."""
    try:
        return get_backend().next_number(name, task_id)
    except BackendUnavailable as error:
        logger.warning("no sequence number from the store, using this machine's clock: %s", error)
        return time.time_ns() // 1000


def number_of(message: Message, name: str = "") -> int:
    """Return the sequence number of ``message``. If its publisher drew none, draw one for ``name``."""
    number = message.header.get("number")
    return int(number) if number else next_number(name, message.id if name else "")


def leave(name: str, task_id: str) -> bool:
    """Remove the message from its line: it has ended, or is sent another way. Return whether others may wait."""
    try:
        return get_backend().leave_order(name, task_id)
    except BackendUnavailable as error:
        logger.warning(
            "lock %r: %s was not removed from the line, where it stays for a while: %s", name, task_id, error
        )
        return True
