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
from django_tasklock.backends.redis.script import load
from django_tasklock.types import Record

SHARES = 256
"""Fences are compared with those of so many-th of all names: few enough to stay, enough that names are seldom in each
other's way."""
ACQUIRE = load("quorum_acquire")
RELEASE = load("quorum_release")
GET = load("quorum_get")
GREET = load("quorum_greet")
STATE = load("quorum_state")
ADMIT = load("quorum_admit")
GIVE_BACK = load("quorum_give_back")
_FENCE = re.compile(rb',"fence":(\d+),"until":\d+}$')


class QuorumKeys:
    """The keys of one prefix, as every instance has them."""

    def __init__(self, prefix: str) -> None:
        root = prefix.removesuffix(":")
        self.layout = Layout(prefix)
        self.prefix = prefix
        self.index = f"{root}#index"
        self.marker = f"{root}#quorum"
        self.greeting = self.marker, f"{self.marker}:run"
        self.state = *self.greeting, self.index, *(f"{self.marker}:{number}" for number in range(SHARES))

    def lock(self, name: str) -> tuple[str, str]:
        """Return the key of a lock, and that of the index by expiry."""
        return self.prefix + name, self.index

    def share(self, name: str) -> str:
        """Return where the greatest fence is of those names that share it with this one."""
        return f"{self.marker}:{crc32(name.encode()) % SHARES}"

    def record(self, name: str, reply: list[Any]) -> Record:
        """Return a record from ``{ms left, value, now}``."""
        return as_leased(self.layout.record(name.encode(), reply))


def fence_in(value: bytes) -> int:
    """Return the fence in a lock's value; 0: it has none."""
    found = _FENCE.search(value)
    return 0 if found is None else int(found[1])


def as_leased(found: Record) -> Record:
    """Return a record without what an instance keeps it longer than its lease."""
    return found if not found.ttl or found.ttl < 0 else replace(found, ttl=max(1, (found.ttl - 2) * 100 // 101))


def padded(ttl: int) -> int:
    """Return how long an instance keeps what is granted for ``ttl`` ms, its clock being one in a hundred too fast."""
    return ttl + ttl // 100 + 2
