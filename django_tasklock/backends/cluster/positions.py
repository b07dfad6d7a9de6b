"""Find a position in the order of all locks: how many locks of each bucket come before it.

Locks are in order of expiry; those that expire in the same millisecond, in order of their buckets. To find the time
that belongs to a position, all buckets are asked how many locks expire by each of fifteen times; and again, between
two of these times, until it is found.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, NamedTuple

from django_tasklock.backends.contract.queries import Which
from django_tasklock.backends.redis.script import bulk, load
from django_tasklock.conf import expiring
from django_tasklock.types import Record

if TYPE_CHECKING:
    from django_tasklock.backends.cluster import ClusterBackend

SPAN = load("cluster_span", 1, 2)
BELOW = load("cluster_below", 1, 2)
RANK = load("cluster_rank", 1, 2)
TIMES = 15
"""How many times one request asks about."""

Numbers = list[int]
"""One number for each bucket."""


class Cut(NamedTuple):
    """A time in ms. ``before``: locks of each bucket that end by then; ``upto``: a millisecond later, or more."""

    time: int
    before: Numbers
    upto: Numbers


class Positions:
    """The locks of one state in the buckets, as they were counted when this was made."""

    def __init__(self, store: ClusterBackend, which: Which) -> None:
        self._store = store
        tail = bulk(which) + bulk(expiring())
        asks = [store.ask(number, SPAN, store.bucket(number).layout.index + tail) for number in store.numbers]
        replies = [reply.split() for reply in store.ask_all(asks)]
        self.ending: Numbers = [int(reply[0]) for reply in replies]
        """How many locks of each bucket have an expiry."""
        self.endless: Numbers = [int(reply[1]) for reply in replies]
        """How many have none."""
        self.sizes: Numbers = [one + other for one, other in zip(self.ending, self.endless, strict=True)]
        self.total = sum(self.sizes)
        self._first = min((time for reply in replies if (time := int(float(reply[2])))), default=0)
        self._last = max(int(float(reply[3])) for reply in replies)
        self._lows = [reply[4] for reply in replies]
        self._cuts: dict[int, Cut] = {}

    @property
    def none(self) -> Numbers:
        """Zero for each bucket."""
        return [0] * len(self.sizes)

    def split(self, position: int) -> Numbers:
        """Return how many locks of each bucket are among the first ``position`` of all."""
        if position <= 0:
            return self.none
        if position >= self.total:
            return self.sizes
        if position >= (ending := sum(self.ending)):
            return _shared(self.ending, self.endless, position - ending)
        cut = self.cut(position)
        ties = [more - less for more, less in zip(cut.upto, cut.before, strict=True)]
        return _shared(cut.before, ties, position - sum(cut.before))

    def cut(self, position: int) -> Cut:
        """Return a time by which ``position`` locks end; or fewer, and a millisecond later more than ``position``.

        More than ``position`` must have an expiry.
        """
        if (known := self._cuts.get(position)) is not None:
            return known
        low, high = self._first - 1, self._last
        before, upto = self.none, self.ending
        while high - low > 1 and sum(before) != position:
            step = max(1, (high - low) // (TIMES + 1))
            times = [time for number in range(1, TIMES + 1) if (time := low + number * step) < high]
            for time, numbers in zip(times, self.upto(times), strict=True):
                if sum(numbers) <= position:
                    low, before = time, numbers
                else:
                    high, upto = time, numbers
                    break
        found = self._cuts[position] = Cut(low, before, upto)
        return found

    def upto(self, times: Sequence[int]) -> list[Numbers]:
        """Return, for each of these times, how many locks of each bucket end by then."""
        script = BELOW.sized(2 + len(times), 1)
        arguments = b"".join(map(bulk, times))
        asks = [
            self._store.ask(number, script, self._store.bucket(number).layout.index + bulk(low) + arguments)
            for number, low in zip(self._store.numbers, self._lows, strict=True)
        ]
        rows = [map(int, reply.split()) for reply in self._store.ask_all(asks)]
        return [list(column) for column in zip(*rows, strict=True)]

    def position(self, record: Record, number: int) -> int:
        """Return how many locks come before ``record``, which is in bucket ``number``."""
        if record.ttl is None:
            before, upto = self.ending, self.sizes
        else:
            ends = record.now + record.ttl
            before, upto = self.upto([ends - 1, ends])
        found = sum(upto[:number]) + sum(before[number + 1 :])
        layout = self._store.bucket(number).layout
        tail = layout.index + bulk(self._lows[number]) + layout.lock(record.name)
        (rank,) = self._store.ask_all([self._store.ask(number, RANK, tail)])
        if rank is None:  # it was released meanwhile
            rank = before[number]
        return int(found + rank)


def _shared(before: Numbers, ties: Numbers, number: int) -> Numbers:
    """Add the first ``number`` of the ties, in order of the buckets, to ``before``."""
    passed = [0, *accumulate(ties)]
    return [one + max(0, min(tie, number - sofar)) for one, tie, sofar in zip(before, ties, passed[:-1], strict=True)]
