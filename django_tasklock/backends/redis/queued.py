"""The waiters of a lock or a permit: the script that reads a queue, and its reply."""

from __future__ import annotations

import json
from typing import Any

from django_tasklock.backends.contract.codec import holder_of
from django_tasklock.backends.contract.stores import Queued, Waiting
from django_tasklock.backends.redis.keys import HANDOVER_TTL
from django_tasklock.backends.redis.script import load
from django_tasklock.types import LATEST, Holder

WAITERS = load("waiters")


def waiters_in(reply: list[Any]) -> Queued:
    """Return the waiters in a reply of ``waiters.lua``, without their tokens, nor those who have given theirs up."""
    now, total, *flat = reply
    found = []
    for rank, stored in zip(flat[::2], flat[1::2], strict=True):
        if stored is not None:
            seen, holder = _parts_of(stored)
            since = min(max(0, int(float(rank)) // 1000), LATEST)
            found.append(Waiting(holder, since, now, now - abs(seen) < HANDOVER_TTL))
    return Queued(found, total)


def _parts_of(stored: bytes) -> tuple[int, Holder]:
    """Return when a waiter last asked, and its holder, from what ``_waiters.lua`` stores."""
    try:
        seen, *_, holder = stored.decode().split(" ", 5)
        return int(seen), holder_of(json.loads(holder))
    except (ValueError, RecursionError):
        return 0, Holder(unreadable=True)
