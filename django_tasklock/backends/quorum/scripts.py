"""The scripts of one instance, and where in it lies what the majority needs beside the locks.

Beside what ``backends.redis.keys`` names there are, for the prefix ``task_lock:``, ``task_lock#quorum`` (the marker:
since when, and from when on, the instance votes), ``task_lock#quorum:run`` (the run of the server that was admitted)
and ``task_lock#quorum:0`` to ``:255`` (the greatest fences, those of some names in each).
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any
from zlib import crc32

from django_tasklock.backends.redis.keys import Layout
from django_tasklock.backends.redis.script import bulk, load
from django_tasklock.types import AcquireRequest, Record

SHARES = 256
"""Fences are compared with those of so many-th of all names: few enough to stay, enough that names are seldom in each
other's way."""
ACQUIRE = load("quorum_acquire", 4, 7)
GREET = load("quorum_greet", 2, 0)
STATE = load("quorum_state", 3 + SHARES, 0)
VOTES = load("quorum_votes", 1, 0)
ADMIT = load("quorum_admit", 1, 3)
VALUES = load("quorum_values", 1, 0)
GIVE_BACK = load("quorum_give_back", 4, 3)
_FENCE = re.compile(rb',"fence":(\d+),"until":\d+}$')


class QuorumKeys:
    """Keys and packed arguments of one prefix, as every instance has them."""

    def __init__(self, layout: Layout) -> None:
        self.layout = layout
        root = layout.prefix.removesuffix(":") + "#quorum"
        self.marker = bulk(root)
        self.greeting = self.marker + bulk(f"{root}:run")
        self._shares = [bulk(f"{root}:{number}") for number in range(SHARES)]
        self.state = self.greeting + layout.index + b"".join(self._shares)

    def acquiring(self, request: AcquireRequest, proposal: int, again: bool) -> bytes:
        """Return keys and arguments of ``ACQUIRE``. ``again``: a lock that it has gets a new fence."""
        name, layout = request.name, self.layout
        keys = layout.lock(name) + layout.index + self.marker + self.share(name)
        lease = bulk(request.token) + bulk(padded(request.ttl_ms)) + bulk(request.hold_ms) + bulk(request.holder)
        return keys + lease + bulk(request.supersedes) + bulk(proposal) + bulk("raise" if again else "")

    def share(self, name: str) -> bytes:
        """Return where the greatest fence is of those names that share it with this one."""
        return self._shares[crc32(name.encode(), 0) % SHARES]

    def record(self, name: str, reply: list[Any]) -> Record:
        """Return a record from ``{ms left, value, now, waiting}``; the last may be missing."""
        return as_leased(self.layout.record(name.encode(), reply))


def fence_in(value: bytes) -> int:
    """Return the fence in a lock's value; 0: it has none."""
    found = _FENCE.search(value)
    return 0 if found is None else int(found[1])


def as_leased(found: Record) -> Record:
    """Return a record without what an instance keeps it longer than its lease."""
    return found if found.ttl is None else replace(found, ttl=lease_left(found.ttl))


def padded(ttl: int) -> int:
    """Return how long an instance keeps what is granted for ``ttl`` ms, its clock being one in a hundred too fast."""
    return ttl + ttl // 100 + 2


def lease_left(left: int) -> int:
    """Return what is left of a lease where ``left`` ms are left in an instance."""
    return left if left <= 0 else max(1, (left - 2) * 100 // 101)
