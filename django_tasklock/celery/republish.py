"""The publication of a row's task again, after the worker that had claimed it is gone."""

from __future__ import annotations

import inspect
import time
from typing import Any

from celery import current_app

from django_tasklock.celery.task import OnceTask

SETTLING = 5.0
"""Seconds after which a message is run that was published inside a transaction: by then that is committed."""


class Publisher:
    """A publisher that finds tasks by what their guards were registered with."""

    def __init__(self) -> None:
        self._tasks: dict[int, Any] | None = None

    def task_of(self, locked: Any) -> Any:
        """Return the task, or ``None``: a function that is none was decorated."""
        if isinstance(locked, type):
            return current_app.tasks.get(str(getattr(locked, "name", "")))
        if self._tasks is None:
            locks = ((getattr(task.run, "lock", None), task) for task in list(current_app.tasks.values()))
            self._tasks = {id(lock): task for lock, task in locks if lock is not None}
        return self._tasks.get(id(locked))

    def obstacle(self, locked: Any, pk: str) -> str:
        """Return why the task cannot be published with the row's primary key alone; empty if it can."""
        task = self.task_of(locked)
        if task is None:
            return "no Celery task is decorated with this guard"
        wanted = [
            parameter.name
            for parameter in inspect.signature(task.run).parameters.values()
            if parameter.default is parameter.empty
            and parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
            and parameter.name != pk
        ]
        if wanted:
            return f"task {task.name} also needs {', '.join(wanted)}"
        return ""

    def publish(self, locked: Any, pk: str, value: Any) -> tuple[str, float]:
        """Send it, to be run a few seconds from now. Return its id, and the monotonic time by which to have committed.

        Uniqueness is left aside: the message that died may still be taken for one that is under way.
        """
        task = self.task_of(locked)
        more = {"once": {"unique": None}} if isinstance(task, OnceTask) and task.unique else {}
        due = time.monotonic() + SETTLING
        sent = task.apply_async(kwargs={pk: value}, countdown=SETTLING, **more)
        return str(sent.id), due
