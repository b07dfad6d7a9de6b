"""How names are spread over the slots of a Redis Cluster. Pure functions.

Names are in 256 *buckets*, each in a slot of its own. The keys of all names of a bucket begin with the same hash tag,
so that one script can use all keys of a name and the index of its bucket. There is one bucket in each range of 64
slots, so a node that serves a part of the slots serves the same part of the buckets. With the prefix ``task_lock:`` the
lock ``video:42`` is the key ``{task_lock.43}:video:42``.
"""

from __future__ import annotations

from binascii import crc_hqx
from functools import lru_cache

from django.core.exceptions import ImproperlyConfigured
from redis.crc import key_slot

SLOTS = 16384
BUCKETS = 256
"""Never change this: processes with different numbers would not see each other's locks."""
WIDTH = SLOTS // BUCKETS


class Bucket:
    """A group of names. ``prefix``: what all their keys begin with; ``slot``: the slot of these keys."""

    def __init__(self, prefix: str) -> None:
        self.prefix = prefix
        self.slot = key_slot(prefix.encode())


@lru_cache(maxsize=8)
def buckets_of(prefix: str) -> tuple[Bucket, ...]:
    """Return the buckets of a ``KEY_PREFIX``. A prefix with a hash tag has a single bucket, in a single slot.

    Raises ``ImproperlyConfigured`` for braces that are not a hash tag.
    """
    root = prefix.removesuffix(":")
    if "{" in root or "}" in root:
        tag, closed, _ = root.partition("{")[2].partition("}")
        if not (tag and closed):
            raise ImproperlyConfigured(
                f"TASKLOCK['KEY_PREFIX'] {prefix!r} has braces that are not a hash tag. For a Redis Cluster, write"
                " it without braces, or as '{text}:' to have all locks in one slot"
            )
        return (Bucket(prefix),)
    found: dict[int, Bucket] = {}
    number = 0
    while len(found) < BUCKETS:
        bucket = Bucket(f"{{{root}.{number}}}:")
        found.setdefault(bucket.slot // WIDTH, bucket)
        number += 1
    return tuple(found[number] for number in range(BUCKETS))


def number_of(name: str, buckets: int) -> int:
    """Return the number of a name's bucket, of ``buckets``. Braces in the name have no special meaning."""
    return crc_hqx(name.encode(), 0) * buckets >> 16
