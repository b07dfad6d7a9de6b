"""What the tasks of a site did, in the order in which they did it, whoever was killed in between.

Each event is one line of a file that all processes append to: a single write that the kernel
does not tear. The time is the machine's monotonic clock, which all of its processes share.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from celery._state import get_current_worker_task

__all__ = ["ENVIRONMENT", "Event", "journaled", "most_at_once", "note", "read"]

ENVIRONMENT = "TASKLOCK_SITE_JOURNAL"
"""Set by the test: the file."""


class Event(NamedTuple):
    """``start``, ``end`` (the body returned), ``raised`` (``more["error"]`` is the class), ``killed`` (by the test)."""

    event: str
    key: str
    task: str
    task_id: str
    pid: int
    time: float
    more: dict[str, Any]


def note(event: str, key: object = "", *, pid: int | None = None, **more: Any) -> None:
    """Write an event down; the task is the one that runs here."""
    task: Any = get_current_worker_task()
    name, task_id = (task.name, task.request.id or "") if task is not None else ("", "")
    line = json.dumps(Event(event, str(key), name, task_id, pid or os.getpid(), time.monotonic(), more))
    file = os.open(os.environ[ENVIRONMENT], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    try:
        os.write(file, f"{line}\n".encode())
    finally:
        os.close(file)


@contextmanager
def journaled(key: object, **more: Any) -> Iterator[None]:
    """A body between its ``start`` and its ``end``."""
    note("start", key, **more)
    try:
        yield
    except BaseException as error:
        note("raised", key, error=type(error).__name__, **more)
        raise
    note("end", key, **more)


def read(path: Path) -> list[Event]:
    """All events so far."""
    text = path.read_text() if path.exists() else ""
    whole = text[: text.rfind("\n") + 1]  # somebody may be in the middle of the last line
    return [Event(*json.loads(line)) for line in whole.splitlines()]


def most_at_once(events: Iterable[Event]) -> int:
    """The most bodies that ran at one time. Those of a process that the test killed ended just then.

    Whoever has a process killed by others (a hard time limit, a revoke) notes ``killed`` with its ``pid``.
    """
    running: list[Event] = []
    most = 0
    for event in events:
        if event.event == "start":
            running.append(event)
            most = max(most, len(running))
        elif event.event == "killed":
            running = [one for one in running if one.pid != event.pid]
        elif event.event in ("end", "raised"):
            same = [one for one in running if (one.pid, one.task_id, one.key) == (event.pid, event.task_id, event.key)]
            if same:
                running.remove(same[0])
    return most
