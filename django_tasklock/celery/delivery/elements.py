"""Calls by ``task.map()``, ``starmap()`` and ``chunks()``: Celery's own task calls the other one once per element."""

from __future__ import annotations

from typing import Any

from celery._state import _task_stack  # type: ignore[attr-defined]

from django_tasklock.celery.delivery.redelivery import DeliveredInside

KEPT_IN_MAP = ("raise", "wait")
"""Words that raise in the middle of a map as well: whoever wrote them wants to know."""


def maps(task: Any) -> bool:
    """Whether this is one of the tasks that call another one for each element."""
    return task is not None and task.name in ("celery.map", "celery.starmap")


def is_element(task: Any) -> bool:
    """Whether the call of ``task``, which runs here, was made by such a one."""
    stack = _task_stack.stack
    return len(stack) > 1 and stack[-1] is task and maps(stack[-2])


class DeliveredElement(DeliveredInside):
    """One call of a decorated task by a map: the others have a right to run."""

    def _conflict(self) -> bool:
        return super()._conflict() if self.on_conflict in KEPT_IN_MAP else self._skip(self._met())
