"""The request class that rejects messages in the broker, in a worker's main process."""

from __future__ import annotations

from typing import Any

from celery.worker import request

from django_tasklock.celery.exceptions import Rejected


class Request(request.Request):
    """A request that also rejects the message in the broker when its task was ``Rejected``, for a dead-letter exchange.

    A task's own ``Request`` class must derive from this one.
    """

    def on_failure(self, exc_info: Any, *how: Any, **more: Any) -> Any:
        """Reject the message if its task was ``Rejected``."""
        error = exc_info.exception
        if isinstance(getattr(error, "exc", error), Rejected):
            if self.acknowledged:  # acknowledged early: only the event can be sent
                self.send_event("task-rejected", requeue=False)
            self.reject(requeue=False)
        return super().on_failure(exc_info, *how, **more)
