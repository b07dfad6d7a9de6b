"""The count that whoever gives a lock back has ready, so that the script need find out neither what nor how much."""

from __future__ import annotations

from bisect import bisect_left
from functools import lru_cache

from django_tasklock.backends.contract.leases import Held
from django_tasklock.backends.contract.metrics import BOUNDS, NOTED_FROM
from django_tasklock.backends.redis.metrics import DONE, UNIT
from django_tasklock.backends.redis.script import bulk
from django_tasklock.types import monotonic

HOUR = 3_600_000_000
"""In microseconds: a fence is the server's clock, or a little more."""


def held_for(held: Held) -> int | None:
    """Return the milliseconds that its holder had it until now, where those can be counted ready.

    ``None``: it is not counted, or that is not known, or it was long enough to be among the last holds of its name.
    """
    if held.kind is None or not held.since:
        return None
    ms = int((monotonic() - held.since) * 1000)
    return ms if 0 <= ms < NOTED_FROM else None


def field(kind: str, ms: int) -> bytes:
    """Return the packed field of the counts for such a hold."""
    return _field(kind, bisect_left(BOUNDS, ms))


@lru_cache(maxsize=1024)
def _field(kind: str, bucket: int) -> bytes:
    return bulk(f"{DONE}:{bucket}|{kind}")


def amount(ms: int) -> int:
    """Return what it is raised by."""
    return UNIT + ms


@lru_cache(maxsize=8)
def hour_key(root: str, hour: int) -> bytes:
    """Return the packed key of the counts of an hour."""
    return bulk(f"{root}{hour}")
