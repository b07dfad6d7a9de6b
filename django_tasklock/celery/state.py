"""The state of a delivery that is stored on its request, for code that runs later in the same delivery."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

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
    lock_changed: bool = False
    """Whether the next try was sent with other arguments and so has another lock."""
    failed_rows: list[Claim] = field(default_factory=list)
    """The claims of helpers whose bodies have failed. Their rows are claimable again once the message is sent again."""
    unique_settled: bool = False
    """Whether the ``unique`` lock of the message, if it has one, was released or kept at the end of the run."""
    replaced: bool = False
    """Whether the body has replaced its task (``replace()``) by another message, which continues the work."""
    unique_passed_on: bool = False
    """Whether that message also carries the ``unique`` lock, which is then held until that message has ended."""
    ended: tuple[str, bool] | None = None
    """Its mark (``duplicates``), if another delivery of the message comes again, or, with False, if that is unknown."""


def state_of(request: Any) -> DeliveryState:
    """Return the state of a request's delivery, creating it on first use."""
    found = request.__dict__.get(STATE)
    if found is None:
        found = request.__dict__[STATE] = DeliveryState()
    return found  # type: ignore[no-any-return]
