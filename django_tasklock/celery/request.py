"""The request class of tasks in a worker's main process: it settles messages as their tasks ended."""

from __future__ import annotations

from functools import wraps
from typing import Any

from celery.worker import request
from celery.worker.state import task_ready

from django_tasklock.celery.exceptions import Rejected


class Request(request.Request):
    """A request that also rejects the message in the broker when its task was ``Rejected``, for a dead-letter exchange.

    It does not acknowledge the message of a cancelled task: a cold shutdown brings it back. A task's own ``Request``
    class must derive from this one.
    """

    cancelled = False

    def __init_subclass__(cls, **options: Any) -> None:
        # Celery derives a class for each task, with an ``on_success`` of its own that does not call this one's.
        super().__init_subclass__(**options)
        if "on_success" in vars(cls):
            cls.on_success = _unless_killed(cls.on_success)  # type: ignore[method-assign]

    def cancel(self, *how: Any, **more: Any) -> Any:
        """Stop the task, whose message will be delivered again."""
        self.cancelled = True
        return super().cancel(*how, **more)

    def on_failure(self, exc_info: Any, *how: Any, **more: Any) -> Any:
        """Reject the message if its task was ``Rejected``."""
        error = exc_info.exception
        if isinstance(getattr(error, "exc", error), Rejected):
            if self.acknowledged:  # acknowledged early: only the event can be sent
                self.send_event("task-rejected", requeue=False)
            self.reject(requeue=False)
        return super().on_failure(exc_info, *how, **more)


def _unless_killed(on_success: Any) -> Any:
    """Return ``on_success`` that leaves the message of a cancelled task unacknowledged if its greenlet was killed.

    Celery's gevent and eventlet pools report a killed greenlet as a success without a runtime.
    """

    @wraps(on_success)
    def wrapped(self: Any, outcome: Any, **more: Any) -> Any:
        failed, _, runtime = outcome
        if self.cancelled and not failed and runtime is None:
            return task_ready(self)
        return on_success(self, outcome, **more)

    return wrapped
