"""Publishing a row's task again after the worker that had claimed the row died."""

from __future__ import annotations

import inspect
import time
from typing import Any

from celery import current_app

from django_tasklock.celery.definition import body_of, lock_of
from django_tasklock.celery.message import DIED
from django_tasklock.celery.task import OnceTask

SETTLING = 5.0
"""Countdown in seconds of a message that is published inside a transaction: the transaction has committed by then."""


class Publisher:
    """A publisher that finds the task of a guard by the object that the guard was registered with."""

    def task_of(self, locked: Any) -> Any:
        """Return the task, or ``None`` if the decorated function is no task."""
        if isinstance(locked, type):
            return current_app.tasks.get(str(getattr(locked, "name", "")))
        return next((task for task in list(current_app.tasks.values()) if lock_of(task) is locked), None)

    def obstacle(self, locked: Any, pk: str) -> str:
        """Return why the task cannot be published with the row's key alone; empty if it can."""
        task = self.task_of(locked)
        if task is None:
            return "no Celery task is decorated with this guard"
        wanted = [
            parameter.name
            for parameter in inspect.signature(body_of(task)).parameters.values()
            if parameter.default is parameter.empty
            and parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
            and parameter.name != pk
        ]
        if wanted:
            return f"task {task.name} also needs {', '.join(wanted)}"
        return ""

    def publish(self, locked: Any, pk: str, value: Any) -> tuple[str, float]:
        """Publish the task with a short countdown. Return its id, and the monotonic time before which to commit.

        The message is not ``unique``: the message that died may still hold that lock. It says that a worker died, so
        that a row of which all die is given up.
        """
        task = self.task_of(locked)
        more = {"once": {"unique": None}} if isinstance(task, OnceTask) and task.unique else {}
        due = time.monotonic() + SETTLING
        sent = task.apply_async(kwargs={pk: value}, countdown=SETTLING, headers={DIED: 0}, **more)
        return str(sent.id), due
