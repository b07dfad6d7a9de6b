"""The log of the package: a line that is always written, and never more than a line."""

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
    """Write a log line. In a thread of ours nothing that a filter or a handler raises ends what the thread is for.

    It goes to standard error then, as what a handler's ``emit`` raises does. In the main thread it is raised, because
    it may be a time limit that struck. ``trace``: with the traceback of the exception that is dealt with.
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
    """Lets every record pass, with the texts among its arguments as ``shown`` has them: a task's id is its sender's."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Return ``True``, always."""
        if isinstance(record.args, tuple):
            record.args = tuple(map(_argument, record.args))
        return True


def _argument(value: Any) -> Any:
    return printable(value, LONGEST_ARGUMENT) if isinstance(value, str) else value
