"""The signals of this package. The exception of a receiver is logged and has no effect on a lock.

The sender is the lock's name (text), for ``messages_late`` the worker's. The ``lock_*`` signals also have ``lock``, the
``TaskLock``, if there is one. ``lock_lost`` and ``lock_asked`` are sent from a thread of their own.
"""

from __future__ import annotations

import logging
from typing import Any

from django.dispatch import Signal

__all__ = [
    "claim_rejected",
    "claim_stale",
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
    "state_changed",
    "store_unavailable",
]

logger = logging.getLogger("django_tasklock")

lock_acquired = Signal()
"""``lock``, ``fence``. This process has acquired the lock."""
lock_released = Signal()
"""``lock``, ``outcome`` (a ``Released``)."""
lock_conflict = Signal()
"""``error`` (a ``TaskLockAcquireError``), ``action``: ``"skip"``, ``"raise"``... The lock was busy."""
lock_forced = Signal()
"""``info`` (a ``LockInfo``). A lock was released by force."""
lock_asked = Signal()
"""``lock``. An operator has requested the release of a lock that this process holds."""
lock_lost = Signal()
"""``lock``, ``reason`` (text). The lease is certainly gone while the body still runs."""
store_unavailable = Signal()
"""``error``, ``action``: ``"run"``, ``"raise"``, ``"skip"``, ``"release later"``. The store is unavailable."""
claim_rejected = Signal()
"""``model``, ``pk``, ``state``, ``reason``: as ``GuardRejected`` has them. The row could not be claimed."""
claim_stale = Signal()
"""``model``, ``pk``, ``attempted``: the fields. A write was refused: the claim was overtaken, or its row not found."""
state_changed = Signal()
"""``model``, ``pk``, ``old_state``, ``new_state``, ``epoch``, ``why``: ``"claimed"``, ``"done"``, ``"failed"``,
``"given_back"``, ``"updated"``, ``"forced"``, ``"swept"``. A write of a guarded row's state was committed."""
message_promoted = Signal()
"""``task``, ``task_id``, ``waited`` (seconds), ``header`` (of this package). A parked message was published again."""
messages_late = Signal()
"""``late`` (seconds), ``messages`` (their number), ``over``: whether another worker may have got them. The sender, a
worker, has renewed its messages late by more than half of their lease."""
rate_granted = Signal()
"""``how`` (``"at_once"`` or ``"waited"``), ``wait`` (seconds), ``cost``. A call was allowed."""
rate_refused = Signal()
"""``error`` (a ``RateLimitExceeded``), ``retry_after`` (seconds). A call was not allowed in time."""
rate_cancelled = Signal()
"""``returned``: whether the reservation was returned, or counts as used."""
rate_late = Signal()
"""``late`` (seconds). A reservation was missed and exchanged for a later one."""
rate_pushback = Signal()
"""``wait`` (seconds), ``share`` of the limit that now applies. A caller reported a 429 or the like."""
rate_unavailable = Signal()
"""``error``, ``action``: ``"closed"``, ``"open"``. Sent in addition to ``store_unavailable``."""


def send(signal: Signal, name: str, **details: Any) -> None:
    """Call every receiver. The exception of one is logged."""
    if not signal.receivers:
        return
    try:
        signal.send_robust(sender=name, **details)
    except Exception:  # Django cannot log one of a receiver without ``__qualname__``: a ``partial``, an object
        logger.exception("%s: a receiver of a signal failed, and could not be named", name)
