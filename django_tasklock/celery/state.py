"""What becomes of a delivery: its state, stored on its request, and the exceptions that end it without a run.

The exceptions tell Celery that a message was not run. Code of a task never sees them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from celery.exceptions import Ignore, Retry

if TYPE_CHECKING:
    from django_tasklock.guards.claim import Claim

STATE = "tasklock_state"
"""The name of the request attribute that has the state; requests of other tasks hardly ever have one."""


@dataclass(slots=True)
class DeliveryState:
    """The state of one delivery in the process that runs it."""

    begun: bool = False
    """Whether the run has begun. A call of the task from inside its own run is then a separate direct call."""
    had_turn: bool = False
    """Whether the delivery has already waited for its turn at the rate limit."""
    on_body_start: Callable[[], None] | None = None
    """Callback to run once it is certain that the body starts."""
    await_turn: Callable[..., tuple[int, int] | None] | None = None
    """``Line.await_turn`` of a message whose turn at the rate limit passes on to newer ones (``coalesce``)."""
    lock_changed: bool = False
    """Whether the next try was sent with other arguments and so has another lock."""
    retried: Retry | None = None
    """What the body was given by ``retry(throw=False)``, which has sent the next try."""
    failed_rows: list[Claim] = field(default_factory=list)
    """The claims of helpers whose bodies have failed. Their rows are claimable again once the message is sent again."""
    unique_settled: bool = False
    """Whether the ``unique`` lock of the message, if it has one, was released or kept at the end of the run."""
    replaced: bool = False
    """Whether the body has replaced its task (``replace()``) by another message, which continues the work."""
    unique_passed_on: bool = False
    """Whether that message also carries the ``unique`` lock, which is then held until that message has ended."""
    ended: str | None = None
    """The mark (``duplicates``) that is to be left once Celery has done what follows the run."""
    marked: bool = False
    """Whether the mark was left by the release of the lock."""


def state_of(request: Any) -> DeliveryState:
    """Return the state of a request's delivery, creating it on first use."""
    found = request.__dict__.get(STATE)
    if found is None:
        found = request.__dict__[STATE] = DeliveryState()
    return found  # type: ignore[no-any-return]


class Parked(Ignore):
    """The message was parked, or a newer one has replaced it: its result is not that of this delivery."""


class Rejected(Ignore):
    """The message ended without a run; the worker rejects it in the broker (``request.Request``).

    Not Celery's ``Reject``: with that one the caller waits for the result for ever, or, since Celery 5.7, the task
    fails with everything that a failure triggers.
    """


class Duplicate(Ignore):
    """Another delivery of the message runs, ran or will run: this delivery changes nothing, not even its result."""
