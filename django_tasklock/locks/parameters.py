"""``LockParameters``: the options of a lock, checked once."""

from __future__ import annotations

import math
from datetime import timedelta
from typing import NamedTuple

from django_tasklock.conf import Duration, LeaseTime, OnUnavailable, Timeout, get_settings, milliseconds, spans
from django_tasklock.exceptions import TaskLockError

POLICIES = ("run", "raise", "skip")


def seconds_to_wait(blocking: bool | None, blocking_timeout: Duration | None, name: str) -> float:
    """Return the seconds that ``acquire()`` waits: 0: it does not wait; infinite: no limit.

    Raises ``TaskLockError`` for an invalid ``blocking_timeout``.
    """
    if blocking_timeout is None:
        return math.inf if blocking else 0.0
    if blocking is False:
        raise TaskLockError(f"blocking_timeout={blocking_timeout!r} with blocking=False means nothing", name=name)
    if blocking_timeout in (0, timedelta(0)) and not isinstance(blocking_timeout, bool):
        return 0.0  # what is left of somebody's time may be nothing
    return milliseconds(blocking_timeout, "blocking_timeout", name=name) / 1000


class LockParameters(NamedTuple):
    """The options of a lock."""

    hold_ms: int
    """The timeout: the longest that one holder may have it, in milliseconds."""
    lease_ms: int | None
    """How long it outlives a holder that died, in milliseconds; ``None``: it is not renewed."""
    ttl: int
    """How long its key lives without a renewal, in milliseconds."""
    max_wait: float
    """How many seconds ``acquire()`` waits, where the call does not say."""
    reentrant: bool
    on_unavailable: OnUnavailable

    @classmethod
    def checked(
        cls,
        name: str,
        timeout: Timeout,
        lease: LeaseTime,
        blocking: bool | None,
        blocking_timeout: Duration | None,
        reentrant: bool,
        on_unavailable: OnUnavailable | None,
    ) -> LockParameters:
        """Return these options with defaults filled in. Raises ``TaskLockError`` for those that cannot work."""
        hold_ms, lease_ms = spans(timeout, lease, name)
        wait = seconds_to_wait(blocking, blocking_timeout, name)
        settings = get_settings()
        policy = settings.ON_UNAVAILABLE if on_unavailable is None else on_unavailable
        if policy not in POLICIES:
            raise TaskLockError(f"on_unavailable must be 'run', 'raise' or 'skip', not {on_unavailable!r}", name=name)
        return cls(hold_ms, lease_ms, lease_ms or hold_ms, wait, reentrant, policy)
