"""The scripts of one instance, and where in it lies what the majority needs beside the locks.

Beside what ``backends.redis.keys`` names there are, for the prefix ``task_lock:``, ``task_lock#quorum`` (the marker:
since when, and from when on, the instance votes), ``task_lock#quorum:run`` (the run of the server that was admitted)
and ``task_lock#quorum:0`` to ``:255`` (the greatest fences, those of some names in each).
"""

from __future__ import annotations

import re
from dataclasses import replace
from importlib import resources
from typing import Any
from zlib import crc32

from django_tasklock.backends.redis.keys import HANDOVER_TTL, Layout, place
from django_tasklock.backends.redis.script import Script, bulk, load
from django_tasklock.types import AcquireRequest, Record

SHARES = 256
"""Fences are compared with those of so many-th of all names: few enough to stay, enough that names are seldom in each
other's way."""
_ACQUIRE = (
    (resources.files("django_tasklock.backends") / "lua" / "quorum_acquire.lua")
    .read_text("utf-8")
    .replace("-- (acquire.lua)\n", load("acquire", 5, 8).body)
)
ACQUIRE = Script(_ACQUIRE, 7 + 6, 7)
FOLLOW = Script(_ACQUIRE, 7 + 8, 7)
JOIN = Script(_ACQUIRE, 7 + 10, 7)
LEAVE = load("release", 5, 2)
GREET = load("quorum_greet", 2, 0)
STATE = load("quorum_state", 3 + SHARES, 0)
VOTES = load("quorum_votes", 1, 0)
ADMIT = load("quorum_admit", 1, 3)
VALUES = load("quorum_values", 1, 0)
GIVE_BACK = load("quorum_give_back", 4, 3)
_VOTE = re.compile(rb'"vote":(\d+)')


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
        """Return keys and arguments of ``ACQUIRE``, or ``FOLLOW``. ``again``: a lock that it has gets a new fence."""
        more = bulk("") + bulk(request.supersedes) if request.supersedes else b""
        return self._taking(request, proposal) + more + bulk(proposal) + bulk("raise" if again else "")

    def joining(
        self, request: AcquireRequest, proposal: int, again: bool, channel: str, rank: int, listens: bool
    ) -> bytes:
        """Return keys and arguments of ``JOIN``."""
        more = self.entry(request, channel) + bulk("") + place(rank, listens)
        return self._taking(request, proposal) + more + bulk(proposal) + bulk("raise" if again else "")

    def share(self, name: str) -> bytes:
        """Return where the greatest fence is of those names that share it with this one."""
        return self._shares[crc32(name.encode(), 0) % SHARES]

    def _taking(self, request: AcquireRequest, proposal: int) -> bytes:
        name, layout = request.name, self.layout
        share = self.share(name)
        holder = voting(request.holder, proposal)
        arguments = bulk(request.token) + bulk(padded(request.ttl_ms)) + bulk(request.hold_ms)
        return layout.keys(name) + self.marker + share + arguments + bulk(holder)

    def entry(self, request: AcquireRequest, channel: str) -> bytes:
        """Return what ``pass_on`` must know of a waiter: what is handed to it has no fence before it has asked."""
        holder = voting(request.holder, 0)
        ttl = min(padded(request.ttl_ms), padded(request.handover_ttl(HANDOVER_TTL)))
        return bulk(f"{request.token} {channel} {ttl} {request.hold_ms} {holder}")

    def record(self, name: str, reply: list[Any]) -> Record:
        """Return a record from ``{ms left, value, now, waiting}``; the last may be missing."""
        return as_voted(self.layout.record(name.encode(), reply), reply[1])


def vote_in(value: bytes) -> int:
    """Return the fence that all instances have in common; 0: it has none yet."""
    vote = _VOTE.search(value)
    return 0 if vote is None else int(vote[1])


def as_voted(found: Record, value: bytes | None) -> Record:
    """Return a record with the fence that all instances have in common, and without what its lease is longer here."""
    vote = _VOTE.search(value or b"")
    ttl = found.ttl if found.ttl is None else lease_left(found.ttl)
    return replace(found, ttl=ttl) if vote is None else replace(found, ttl=ttl, fence=int(vote[1]))


def voting(holder: str, proposal: int) -> str:
    """Return a holder with a fence in it."""
    return f'{{"vote":{proposal}{"" if holder == "{}" else ","}{holder[1:]}' if holder[:1] == "{" else holder


def padded(ttl: int) -> int:
    """Return how long an instance keeps what is granted for ``ttl`` ms, its clock being one in a hundred too fast."""
    return ttl + ttl // 100 + 2


def lease_left(left: int) -> int:
    """Return what is left of a lease where ``left`` ms are left in an instance."""
    return left if left <= 0 else max(1, (left - 2) * 100 // 101)
