"""The message that brought the task that runs here, and what of ours travels in it."""

from __future__ import annotations

from functools import cached_property
from typing import Any

from celery.canvas import Signature

__all__ = ["HEADER", "Message"]

HEADER = "tasklock"
"""The message header: a dict of plain values. ``key``: the lock's name, computed when it was published."""


class Message:
    """One delivery of a task's message to this worker."""

    def __init__(self, task: Any) -> None:
        self.task = task
        self.request = task.request
        self.id: str = self.request.id
        self.retries: int = self.request.retries or 0

    @cached_property
    def header(self) -> dict[str, Any]:
        """What the publisher wrote for us."""
        return header_of(self.request)

    @cached_property
    def sent(self) -> int:
        """How often it had been put back into the broker out of the line; 0: it comes from its publisher.

        What ``retry()`` made of a message that was put back is another one.
        """
        put_back = self.header.get("put_back") or (0, 0)
        return int(put_back[0]) if put_back[1] == self.retries else 0

    @property
    def redelivered(self) -> bool:
        """Whether the broker says that an earlier delivery was not acknowledged."""
        return bool((self.request.delivery_info or {}).get("redelivered"))

    @property
    def late(self) -> bool:
        """Whether it is acknowledged after its run, so that it comes back if this worker dies."""
        return bool(self.task.acks_late)

    @property
    def in_canvas(self) -> bool:
        """Whether a group or a chord waits for its result."""
        return bool(self.request.group or self.request.chord)

    @property
    def wants_result(self) -> bool:
        """Whether states are kept for it."""
        return not (self.task.ignore_result or getattr(self.request, "ignore_result", False))

    def again(self, *, countdown: float | None = None, **header: Any) -> Signature[Any]:
        """The same message once more, with the same id and number of retries: for after ``countdown`` seconds."""
        ours = {key: value for key, value in {**self.header, **header}.items() if value is not None}
        options = {} if countdown is None else {"countdown": countdown}
        headers = {**(self.request.headers or {}), HEADER: ours}
        return self.task.signature_from_request(  # type: ignore[no-any-return]
            self.request, headers=headers, retries=self.retries, **options
        )


def header_of(request: Any) -> dict[str, Any]:
    """Our header in a request, a worker's or an eager one; empty if there is none."""
    found = getattr(request, HEADER, None) or (getattr(request, "headers", None) or {}).get(HEADER)
    return found if isinstance(found, dict) else {}
