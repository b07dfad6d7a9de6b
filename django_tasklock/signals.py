"""What a project can listen to. A receiver that fails never affects a lock: it is logged.

Every signal's sender is the lock's name (text), that of ``messages_late`` the worker's; ``lock_*`` also carry ``lock``,
the ``TaskLock``, where there is one. Lost locks are announced from a thread of their own.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from django.dispatch import Signal

__all__ = [
    "claim_rejected",
    "claim_stale",
    "count",
    "lock_acquired",
    "lock_asked",
    "lock_conflict",
    "lock_forced",
    "lock_lost",
    "lock_released",
    "message_promoted",
    "messages_late",
    "rate_cancelled",
    "rate_granted",
    "rate_late",
    "rate_pushback",
    "rate_refused",
    "rate_unavailable",
    "send",
    "store_unavailable",
]

logger = logging.getLogger("django_tasklock")

lock_acquired = Signal()
"""``lock``, ``fence``. Somebody of this process has the lock now."""
lock_released = Signal()
"""``lock``, ``outcome`` (a ``Released``)."""
lock_conflict = Signal()
"""``error`` (a ``TaskLockAcquireError``), ``action``: ``"skip"``, ``"raise"``... The lock was busy."""
lock_forced = Signal()
"""``info`` (a ``LockInfo``). A lock was taken away from its holder."""
lock_asked = Signal()
"""``lock``. An operator asks this process to give the lock back; it still has it."""
lock_lost = Signal()
"""``lock``, ``reason`` (text). The lease is certainly gone while the body still runs."""
store_unavailable = Signal()
"""``error``, ``action``: ``"run"``, ``"raise"``, ``"skip"``, ``"release later"``. The store could not be asked."""
claim_rejected = Signal()
"""``model``, ``pk``, ``state``. The row was not in a claimable state."""
claim_stale = Signal()
"""``model``, ``pk``, ``attempted``: the fields. A write of an overtaken claim was refused."""
message_promoted = Signal()
"""``task``, ``task_id``, ``waited`` (seconds), ``header``: ours. A parked message was put back into the broker."""
messages_late = Signal()
"""``late`` (seconds), ``messages`` (how many), ``over``: whether they may have been delivered to another worker. A
worker, the sender, has renewed what it has from the broker too late by more than half of its lease."""
rate_granted = Signal()
"""``how`` (``"at_once"`` or ``"waited"``), ``wait`` (seconds), ``cost``. A call may be made."""
rate_refused = Signal()
"""``error`` (a ``RateLimitExceeded``), ``retry_after`` (seconds). None could be made in time."""
rate_cancelled = Signal()
"""``returned``: whether the reservation came back, or counts as used."""
rate_late = Signal()
"""``late`` (seconds): a reservation was missed, and another one is booked in exchange."""
rate_pushback = Signal()
"""``wait`` (seconds), ``share`` of the limit that is in force. Somebody reported a 429 or the like."""
rate_unavailable = Signal()
"""``error``, ``action``: ``"closed"``, ``"open"``, ``"local"``. Beside ``store_unavailable``."""


_counters: dict[Signal, Callable[..., None]] = {}


def count(signal: Signal, counter: Callable[..., None]) -> None:
    """Let ``counter`` be called as a receiver would be, the name first, without what Django does for receivers: they
    may come and go, and raise. There is one counter a signal."""
    _counters[signal] = counter


def send(signal: Signal, name: str, **details: Any) -> None:
    """Count it, and send to every receiver; what one raises is logged and goes no further."""
    if (counter := _counters.get(signal)) is not None:
        counter(name, **details)
    if not signal.receivers:
        return
    try:
        signal.send_robust(sender=name, **details)
    except Exception:  # Django cannot log one of a receiver without ``__qualname__``: a ``partial``, an object
        logger.exception("%s: a receiver of a signal failed, and could not be named", name)
