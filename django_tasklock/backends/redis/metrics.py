"""The counts that the scripts keep in Redis: see ``lua/_counts.lua``."""

from __future__ import annotations

import json
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from django_tasklock.backends.codec import holder_of
from django_tasklock.backends.contract.metrics import (
    ACQUIRED,
    BOUNDS,
    NOTED_FROM,
    RELEASED,
    Count,
    Counted,
    HoldRecord,
    Hour,
    Metrics,
    clean_kind,
)
from django_tasklock.backends.redis.script import bulk, load

if TYPE_CHECKING:
    from django_tasklock.backends.redis import RedisBackend
    from django_tasklock.backends.redis.keys import Layout

TOTALS = load("metrics_totals", 1, 3)
ADD = load("metrics_add", 1, 2)
PAST = load("metrics_past", 1, 1)
UNIT = 10**12
"""A count with a duration is one number: the number of events times ``UNIT``, plus the milliseconds."""
AT_ONCE = 2000
"""Locks that one script examines: whether their acquisition is counted."""
DONE = "done"
"""The event for the release of a lock that was granted at once: acquired and released in one."""
HOUR = 3_600_000_000
"""In microseconds, as fences are."""
BUCKETS = tuple(bisect_left(BOUNDS, ms) for ms in range(NOTED_FROM))
"""The bucket by the duration in milliseconds, for holds that are too short for the history."""


class RedisMetrics(Metrics):
    """The counts of a ``RedisBackend``, on its connections."""

    def __init__(self, backend: RedisBackend) -> None:
        self._backend = backend
        self._past = f"{backend.layout.prefix.removesuffix(':')}#past:"

    def totals(self) -> Counted:
        return totals_in(self._parts(""))

    def hours(self, number: int) -> list[Hour]:
        found = hours_in(self._parts(str(number)))
        return [Hour(at, found[at]) for at in sorted(found)]

    def _parts(self, hours: str) -> list[Part]:
        offset = 0
        while True:
            reply = self._backend.wire.call(TOTALS, reading(self._backend.layout, hours, offset))[0]
            offset += AT_ONCE
            if is_whole([reply], offset):
                return parts(reply)

    def add(self, event: str, kind: str) -> None:
        self._backend.wire.call(ADD, self._backend.layout.index + bulk(event) + bulk(kind), again=False)

    def holds(self, name: str, limit: int) -> list[HoldRecord]:
        reply = self._backend.wire.call(PAST, bulk(self._past + name) + bulk(limit))[0]
        return [hold for text in reply if (hold := hold_of(name, text)) is not None]


Part = tuple[bytes, list[bytes]]
"""An hour, or nothing, and the fields of its counts, as the script returns them."""
Counts = dict[tuple[str, str], Count]
"""By event and kind."""


def reading(layout: Layout, hours: str, offset: int) -> bytes:
    """Return the keys and arguments of ``metrics_totals.lua``."""
    return layout.index + bulk(hours) + bulk(offset) + bulk(AT_ONCE)


def is_whole(replies: Sequence[Sequence[Any]], offset: int) -> bool:
    """Return whether no locks remain from ``offset`` on: then the replies have the counts."""
    return all(reply[0] <= offset for reply in replies)


def parts(reply: Sequence[Any]) -> list[Part]:
    """Return the counts in a reply, which begins with the size of the index."""
    return list(zip(reply[1::2], reply[2::2], strict=True))


def totals_in(hour_parts: Iterable[Part]) -> Counts:
    """Return the sum of all parts."""
    found: Counts = {}
    for _, flat in hour_parts:
        _add_fields(found, flat)
    return found


def hours_in(hour_parts: Iterable[Part]) -> dict[int, Counts]:
    """Return the counts of each hour, by its beginning in seconds since 1970."""
    found: dict[int, Counts] = {}
    for hour, flat in hour_parts:
        _add_fields(found.setdefault(int(hour) * 3600, {}), flat)
    return found


def _add_fields(found: Counts, flat: list[bytes]) -> None:
    """Add the fields of a hash of counts to ``found``; fields that are not ours are ignored."""
    for field, value in zip(flat[::2], flat[1::2], strict=True):
        name, bar, kind = field.decode(errors="replace").partition("|")
        if not bar:
            continue  # the description for people
        try:
            number = int(value)
        except ValueError:
            continue
        if name == "n":
            name, _, kind = kind.partition("|")
            count = Count(number)
        elif name == "ms":
            name, _, kind = kind.partition("|")
            count = Count(0, number)
        elif number >= UNIT:
            count = Count(*divmod(number, UNIT))
        else:
            count = Count(number)
        if name.startswith("limit."):  # the scripts of rate limits only know the whole name
            kind = clean_kind(kind)
        event, colon, bucket = name.partition(":")
        if colon and event == DONE:
            found[ACQUIRED, kind] = found.get((ACQUIRED, kind), Count()).plus(Count(count.number))
            name = f"{RELEASED}:{bucket}"
        found[name, kind] = found.get((name, kind), Count()).plus(count)


def hold_of(name: str, text: bytes) -> HoldRecord | None:
    """Return a past hold; ``None`` if it cannot be read."""
    try:
        data: dict[str, Any] = json.loads(text)
        holder = holder_of(data["holder"])
        return HoldRecord(name, holder.kind, holder, int(data["at"]), int(data["end"]), str(data["how"]))
    except (ValueError, TypeError, KeyError, RecursionError):
        return None


# A release passes the count to its script, which need not compute it then: ``UNIT`` plus the milliseconds of the hold,
# for a field by kind and bucket, in the hash of the hour of the fence.


@lru_cache(maxsize=1024)
def done_field(kind: str, bucket: int) -> bytes:
    """Return the encoded field that counts holds of a kind which are too short for the history."""
    return bulk(f"{DONE}:{bucket}|{kind}")


@lru_cache(maxsize=512)  # a cluster has some hundred of them
def hour_key(root: str, hour: int) -> bytes:
    """Return the encoded key of the counts of an hour."""
    return bulk(f"{root}{hour}")
