"""The request class of tasks in a worker's main process: it settles messages as their tasks ended."""

from __future__ import annotations

import os
import signal
from functools import wraps
from typing import Any, ClassVar

from celery.exceptions import TaskRevokedError
from celery.worker import request
from celery.worker.state import active_requests, reserved_requests, task_ready

from django_tasklock.celery.state import Rejected


class Request(request.Request):
    """A request that also rejects the message in the broker when its task was ``Rejected``, for a dead-letter exchange.

    It does not acknowledge the message of a cancelled task: a cold shutdown brings it back. A task's own ``Request``
    class must derive from this one.
    """

    cancelled = False
    in_slot_before_start: ClassVar[bool] = True
    """Whether a request waits for a slot before the pool is given it, as with prefork; otherwise the pool keeps it."""

    def __init_subclass__(cls, **options: Any) -> None:
        # Celery derives a class for each task, with an ``on_success`` of its own that does not call this one's.
        super().__init_subclass__(**options)
        if "on_success" in vars(cls):
            cls.on_success = _unless_killed(cls.on_success)  # type: ignore[method-assign]

    def give_back(self) -> bool:
        """Leave the message to other workers, for any thread.

        Return False if a slot has it, as it cannot be stopped, or if it was given back before.
        """
        if self.acknowledged or self.__dict__.setdefault("has_slot", False):
            return False
        self.acknowledged = True  # whatever becomes of it here changes nothing in the broker
        return True

    def _enter_slot(self) -> bool:
        """Return whether it may start; otherwise it was given back, and is forgotten."""
        if self.__dict__.setdefault("has_slot", True):
            return True
        task_ready(self)
        return False

    def revoked(self) -> bool:
        """Return whether it must not start: it was revoked, or has expired, or was given back."""
        # Celery also asks when the message arrives.
        if self.in_slot_before_start and self in reserved_requests and not self._enter_slot():
            return True
        return bool(super().revoked())

    def on_accepted(self, *how: Any, **more: Any) -> Any:
        """Record the start. Raises ``TaskRevokedError``, which keeps a pool of this process from it, if given back."""
        if not self.in_slot_before_start and not self._enter_slot():
            raise TaskRevokedError(self.id)
        return super().on_accepted(*how, **more)

    def cancel(self, *how: Any, **more: Any) -> Any:
        """Stop the task, whose message will be delivered again."""
        self.cancelled = True
        return super().cancel(*how, **more)

    def kill(self) -> bool:
        """Kill the child process that runs it, for any thread. Return False if it has ended by itself.

        The pool notices, and its message is settled as after any death of a process.
        """
        pid: int = self.worker_pid  # type: ignore[assignment]  # it has begun
        try:
            leads = os.getpgid(pid) == pid  # as Celery's time limit does, with the processes that such a one started
            send = os.killpg if leads else os.kill
            send(pid, signal.SIGSTOP)  # so that it begins nothing else until it is known that it still runs this
            runs = self in active_requests
            send(pid, signal.SIGKILL if runs else signal.SIGCONT)
        except ProcessLookupError:
            return False
        return runs

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
