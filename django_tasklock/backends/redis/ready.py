"""The count that whoever gives a lock back has ready, so that the script need find out neither what nor how much.

A hold that was too short to be among the last ones of its name is ``UNIT`` and its milliseconds, in a field by its kind
and bucket, in the hash of the hour that its fence says.
"""

from __future__ import annotations

from bisect import bisect_left
from functools import lru_cache

from django_tasklock.backends.contract.metrics import BOUNDS, NOTED_FROM
from django_tasklock.backends.redis.metrics import DONE
from django_tasklock.backends.redis.script import bulk

HOUR = 3_600_000_000
"""In microseconds: a fence is the server's clock, or a little more."""
BUCKETS = tuple(bisect_left(BOUNDS, ms) for ms in range(NOTED_FROM))
"""By milliseconds."""


@lru_cache(maxsize=1024)
def field(kind: str, bucket: int) -> bytes:
    """Return the packed field of the counts for such a hold."""
    return bulk(f"{DONE}:{bucket}|{kind}")


@lru_cache(maxsize=512)  # a cluster has some hundred of them
def hour_key(root: str, hour: int) -> bytes:
    """Return the packed key of the counts of an hour."""
    return bulk(f"{root}{hour}")
