"""Lists of the locks of a cluster, merged from its buckets."""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heapify, heappop, heappush
from math import inf
from operator import itemgetter
from typing import TYPE_CHECKING

from django_tasklock.backends.cluster.merging import sum_columns
from django_tasklock.backends.cluster.positions import Numbers, Positions
from django_tasklock.backends.contract.queries import Counts, Page, Pruned, Query
from django_tasklock.backends.redis import COUNTS, HEALINGS, PRUNE
from django_tasklock.backends.redis.listing import MOST, page_in, page_of
from django_tasklock.backends.redis.script import bulk
from django_tasklock.conf import expiring
from django_tasklock.types import Record

if TYPE_CHECKING:
    from django_tasklock.backends.cluster import ClusterBackend

CHUNK = 32
"""The most locks of one bucket that are read at once when the order is not by expiry."""

Found = tuple[float, int, int, Record]
"""When the lease ends (ms), the bucket, the position among the locks read from it, and the lock."""


class Listing:
    """The locks of all buckets in one order."""

    def __init__(self, store: ClusterBackend) -> None:
        self._store = store

    def page(self, query: Query) -> Page:
        """Do what the contract says."""
        if query.which == "live" and query.order != "expiry":
            return self._by_value(query)
        found = self._by_expiry(query)
        for _ in range(HEALINGS):
            if found.records or found.next != query.offset or query.limit < 1:
                break
            found = self._by_expiry(query)
        return found

    def _by_expiry(self, query: Query) -> Page:
        positions = Positions(self._store, query.which)
        looks = query.searches
        if query.limit < 1 or query.offset >= positions.total:
            return Page([], positions.total, query.offset if query.offset < positions.total else None)
        starts = positions.split(positions.total - query.offset if query.descending else query.offset)
        number = min(MOST if looks else query.limit, positions.total - query.offset)
        ends, bound = _end(positions, query, number)
        pages = self._read(query, positions, starts, ends)
        found = [one for one in pages if (one[0] >= bound if query.descending else one[0] <= bound)]
        found.sort(key=itemgetter(0, 1), reverse=query.descending)  # stable: those of one bucket stay in order
        if not looks:
            after = query.offset + len(found)
        elif len(found) > query.limit:
            found = found[: query.limit]
            position = positions.position(found[-1][-1], found[-1][1])
            after = positions.total - position if query.descending else position + 1
        else:
            after = query.offset + sum(abs(one - other) for one, other in zip(starts, ends, strict=True))
        return Page([one[-1] for one in found], positions.total, after if after < positions.total else None)

    def _read(self, query: Query, positions: Positions, starts: Numbers, ends: Numbers) -> list[Found]:
        """Read the locks between two positions of each bucket. Those of one bucket are in order."""
        asks, sources = [], []
        for number, size in enumerate(positions.sizes):
            many = abs(ends[number] - starts[number])
            if many:
                offset = size - starts[number] if query.descending else starts[number]
                part = query._replace(offset=offset, limit=many)
                layout = self._store.bucket(number).layout
                asks.append(self._store.ask(number, *page_of(layout, part, many)))
                sources.append((number, layout, part))
        found: list[Found] = []
        for (number, layout, part), reply in zip(sources, self._store.ask_all(asks), strict=True):
            records = page_in(layout, part, reply).records
            found += [(record.lease_ends, number, at, record) for at, record in enumerate(records)]
        return found

    def _by_value(self, query: Query) -> Page:
        """Return the page by age, or by time left of the timeout: merge the locks of the buckets from the first on."""
        wanted = query.offset + query.limit
        chunk = max(1, min(CHUNK, wanted, 2 * wanted // len(self._store.numbers) + 1))
        streams = [_Stream(number) for number in self._store.numbers]
        heads: list[tuple[float, int]] = []
        records: list[Record] = []
        passed = 0
        empty = streams
        while True:
            self._refill(query, empty, chunk)
            heads += [(stream.key(query), stream.number) for stream in empty if stream.records]
            heapify(heads)
            empty = []
            while heads and not empty and passed < wanted:
                _, number = heappop(heads)
                record = streams[number].records.pop()
                passed += 1
                if passed > query.offset:
                    records.append(record)
                if streams[number].records:
                    heappush(heads, (streams[number].key(query), number))
                elif streams[number].next is not None:
                    empty = [streams[number]]
            if not empty:
                break
            empty = [stream for stream in streams if not stream.records and stream.next is not None]
        more = any(stream.records or stream.next is not None for stream in streams)
        total = sum(stream.size for stream in streams)
        return Page(records, total, query.offset + len(records) if more else None)

    def _refill(self, query: Query, streams: Sequence[_Stream], chunk: int) -> None:
        """Read on in each of these buckets until it has a lock that matches the query, or is read to its end."""
        while streams:
            asks, sources = [], []
            for stream in streams:
                part = query._replace(offset=stream.next or 0, limit=chunk)
                layout = self._store.bucket(stream.number).layout
                asks.append(self._store.ask(stream.number, *page_of(layout, part)))
                sources.append((stream, layout, part))
            for (stream, layout, part), reply in zip(sources, self._store.ask_all(asks), strict=True):
                page = page_in(layout, part, reply)
                stream.records, stream.next, stream.size = page.records[::-1], page.next, page.total
            streams = [stream for stream in streams if not stream.records and stream.next is not None]

    def counts(self) -> Counts:
        """Do what the contract says."""
        tail = bulk(expiring())
        asks = [
            self._store.ask(number, COUNTS, self._store.bucket(number).layout.index + tail)
            for number in self._store.numbers
        ]
        return Counts(*sum_columns(self._store.ask_all(asks)))

    def prune(self, limit: int, lapsed_before: int | None, prefix: str, offset: int) -> Pruned:
        """Do what the contract says."""
        positions = Positions(self._store, "orphaned")
        total = positions.total if lapsed_before is None else sum(positions.upto([lapsed_before])[0])
        starts, ends = positions.split(min(offset, total)), positions.split(min(offset + limit, total))
        asks = []
        for number, (start, end) in enumerate(zip(starts, ends, strict=True)):
            if end > start:
                tail = self._store.bucket(number).pruning(end - start, lapsed_before, prefix, start)
                asks.append(self._store.ask(number, PRUNE, tail))
        return Pruned(*(sum_columns(self._store.ask_all(asks)) or (0, 0)))


class _Stream:
    """A bucket that is being read. ``records``: those that were read but not merged yet, in reverse order."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.records: list[Record] = []
        self.next: int | None = 0
        self.size = 0

    def key(self, query: Query) -> float:
        """Return the sort key of its next lock. The least key comes first."""
        record = self.records[-1]
        if query.order == "left":
            value = float(record.until)
        else:
            beyond = record.fence / 1000 - record.at  # the fence has the microseconds
            value = -(record.at + (beyond if 0 < beyond < 1 else 0))
        return -value if query.descending else value


def _end(positions: Positions, query: Query, number: int) -> tuple[Numbers, float]:
    """Return the position in each bucket at which ``number`` locks from the offset on end, and the time of that.

    The caller drops locks beyond that time (ms), which it reads only if the index has changed meanwhile.
    """
    ending = sum(positions.ending)
    if query.descending:
        position = positions.total - query.offset - number
        if not query.searches:
            return positions.split(position), (
                inf if position >= ending else positions.cut(position).time if position else -inf
            )
        if position <= 0:
            return positions.none, -inf
        if position >= ending:
            return positions.ending, inf
        cut = positions.cut(position)
        return cut.before, cut.time + 1
    position = query.offset + number
    if not query.searches:
        return positions.split(position), (inf if position >= ending else positions.cut(position).time + 1)
    if position >= ending:
        return positions.sizes, inf
    cut = positions.cut(position)
    return (cut.before, cut.time) if sum(cut.before) == position else (cut.upto, cut.time + 1)
