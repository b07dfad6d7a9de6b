"""What is noted of a delivery in its request, for those of us who see that later: all of it in one object."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from django_tasklock.locks.lock import TaskLock

STATE = "tasklock_state"
"""The attribute of the request with it; nearly no request of another task has one."""


@dataclass(slots=True)
class DeliveryState:
    """The state of one delivery in the process that runs it."""

    begun: bool = False
    """Whether the run has begun: whoever calls the task inside of it makes a call of its own."""
    had_turn: bool = False
    """Whether its turn at the rate limit has come."""
    on_body_start: Callable[[], None] | None = None
    """The action for when it is certain that the body begins."""
    kept_lock: tuple[TaskLock, str] | None = None
    """The lock that ``retry()`` keeps, and the handle by which the next try finds it."""
    moved: bool = False
    """Whether the next try was sent with other arguments, so that it has another lock."""
    unique_settled: bool = False
    """Whether the lock of its publication, if it has one, was freed, or kept, as the run has ended."""
    replaced: bool = False
    """Whether the body has replaced its task by another message, which goes on with its work."""
    passed_on: bool = False
    """Whether that message brings its ``unique`` on, which is not free before that has ended."""
    has_row: bool | None = None
    """Whether a row goes when the result is stored; False if only a note would say so, ``None`` if there is none."""


def state_of(request: Any) -> DeliveryState:
    """Return the state of a delivery, by its request."""
    found = request.__dict__.get(STATE)
    if found is None:
        found = request.__dict__[STATE] = DeliveryState()
    return found  # type: ignore[no-any-return]
