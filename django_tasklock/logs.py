"""The package's log: a failing handler does not end a background thread, and a record stays on one line."""

from __future__ import annotations

import contextlib
import logging
import sys
import threading
import traceback
from typing import Any

from django_tasklock.texts import printable

logger = logging.getLogger("django_tasklock")

LONGEST_ARGUMENT = 2000


def log(level: int, message: str, *args: object, trace: bool = False) -> None:
    """Write a log line. In a background thread, an exception of a filter or handler goes to standard error.

    So it does not end the thread. In the main thread it is raised, because it may come from a signal handler, as a time
    limit does. ``trace``: with the traceback of the exception that is being handled.
    """
    try:
        logger.log(level, message, *args, exc_info=trace, stacklevel=2)
    except BaseException:
        if threading.current_thread() is threading.main_thread():
            raise
        with contextlib.suppress(Exception):
            sys.stderr.write(f"django_tasklock: could not be logged: {message % args}\n")
            traceback.print_exc()


class OneLine(logging.Filter):
    """Makes the texts among a record's arguments printable, because their senders choose them, such as task ids."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Return ``True``, always."""
        if isinstance(record.args, tuple):
            record.args = tuple(map(_argument, record.args))
        return True


def _argument(value: Any) -> Any:
    return printable(value, LONGEST_ARGUMENT) if isinstance(value, str) else value
