"""The waiters of a lock or a permit: the script that reads a queue, and its reply."""

from __future__ import annotations

import json
from typing import Any

from django_tasklock.backends.codec import holder_of
from django_tasklock.backends.contract.queries import Queued, Waiting
from django_tasklock.backends.redis.keys import HANDOVER_TTL
from django_tasklock.backends.redis.script import load
from django_tasklock.types import LATEST, Holder

WAITERS = load("waiters", 2, 1)


def waiters_in(reply: list[Any]) -> Queued:
    """Return the waiters in a reply of ``waiters.lua``, without their tokens."""
    now, total, *flat = reply
    found = []
    for entry, rank, seen in zip(flat[::3], flat[1::3], flat[2::3], strict=True):
        # Without a "seen" field the waiter has given up its token.
        present = seen is not None and now - abs(int(seen.split()[0])) < HANDOVER_TTL
        since = min(max(0, int(float(rank)) // 1000), LATEST)
        found.append(Waiting(_holder(entry), since, now, present))
    return Queued(found, total)


def _holder(entry: bytes) -> Holder:
    """Return the holder in an entry ``<token> <channel> <ttl ms> <hold ms> <holder json>``, followed by a limit for
    permits.
    """
    text = entry.decode(errors="replace").split(" ", 4)[-1]
    try:
        return holder_of(json.JSONDecoder().raw_decode(text)[0])
    except (ValueError, RecursionError):
        return Holder(unreadable=True)
