"""The end of a rejected message in a worker's main process."""

from __future__ import annotations

from typing import Any

from celery.worker import request

from django_tasklock.celery.exceptions import Rejected


class Request(request.Request):
    """A request that rejects in the broker what its task has rejected, for a dead-letter exchange.

    A subclass of a task's own needs this one as its base.
    """

    def on_failure(self, exc_info: Any, *how: Any, **more: Any) -> Any:
        """Reject the message, if its task has."""
        error = exc_info.exception
        if isinstance(getattr(error, "exc", error), Rejected):
            if self.acknowledged:  # before it ran: only who watches the events is to be told
                self.send_event("task-rejected", requeue=False)
            self.reject(requeue=False)
        return super().on_failure(exc_info, *how, **more)
