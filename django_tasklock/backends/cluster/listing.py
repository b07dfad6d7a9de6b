"""Lists of locks, merged from the buckets: a page is read of all of them, no more than a page at a time."""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heapify, heappop, heappush
from math import inf
from operator import itemgetter
from typing import TYPE_CHECKING

from django_tasklock.backends.cluster.merging import summed
from django_tasklock.backends.cluster.places import Numbers, Places
from django_tasklock.backends.contract.queries import Counts, Page, Pruned, Query
from django_tasklock.backends.redis import COUNTS, HEALINGS, PRUNE
from django_tasklock.backends.redis.listing import MOST, page_in, page_of
from django_tasklock.backends.redis.script import bulk
from django_tasklock.conf import expiring
from django_tasklock.types import Record

if TYPE_CHECKING:
    from django_tasklock.backends.cluster import ClusterBackend

CHUNK = 32
"""Locks of one bucket that are read at once where all are merged by something else than expiry, at the most."""

Found = tuple[float, int, int, Record]
"""When it ends (ms), its bucket, and its number in what was read of that."""


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
        places = Places(self._store, query.which)
        looks = _looks(query)
        if query.limit < 1 or query.offset >= places.total:
            return Page([], places.total, query.offset if query.offset < places.total else None)
        starts = places.split(places.total - query.offset if query.descending else query.offset)
        number = min(MOST if looks else query.limit, places.total - query.offset)
        ends, bound = _end(places, query, number)
        pages = self._read(query, places, starts, ends)
        found = [one for one in pages if (one[0] >= bound if query.descending else one[0] <= bound)]
        found.sort(key=itemgetter(0, 1), reverse=query.descending)  # each bucket's are in order
        if not looks:
            after = query.offset + len(found)
        elif len(found) > query.limit:
            found = found[: query.limit]
            position = places.position(found[-1][-1], found[-1][1])
            after = places.total - position if query.descending else position + 1
        else:
            after = query.offset + sum(abs(one - other) for one, other in zip(starts, ends, strict=True))
        return Page([one[-1] for one in found], places.total, after if after < places.total else None)

    def _read(self, query: Query, places: Places, starts: Numbers, ends: Numbers) -> list[Found]:
        """Read the locks between two places in the order, those of each bucket in order."""
        asks, sources = [], []
        for place, size in enumerate(places.sizes):
            number = abs(ends[place] - starts[place])
            if number:
                offset = size - starts[place] if query.descending else starts[place]
                part = query._replace(offset=offset, limit=number)
                layout = self._store.bucket(place).layout
                asks.append(self._store.ask(place, *page_of(layout, part, number)))
                sources.append((place, layout, part))
        found: list[Found] = []
        for (place, layout, part), reply in zip(sources, self._store.ask_all(asks), strict=True):
            records = page_in(layout, part, reply).records
            found += [(record.lease_ends, place, at, record) for at, record in enumerate(records)]
        return found

    def _by_value(self, query: Query) -> Page:
        """Merge the buckets' locks by age, or by what is left of the timeout, from the first on."""
        wanted = query.offset + query.limit
        chunk = max(1, min(CHUNK, wanted, 2 * wanted // len(self._store.places) + 1))
        streams = [_Stream(place) for place in self._store.places]
        heads: list[tuple[float, int]] = []
        records: list[Record] = []
        passed = 0
        empty = streams
        while True:
            self._refill(query, empty, chunk)
            heads += [(stream.key(query), stream.place) for stream in empty if stream.records]
            heapify(heads)
            empty = []
            while heads and not empty and passed < wanted:
                _, place = heappop(heads)
                record = streams[place].records.pop()
                passed += 1
                if passed > query.offset:
                    records.append(record)
                if streams[place].records:
                    heappush(heads, (streams[place].key(query), place))
                elif streams[place].next is not None:
                    empty = [streams[place]]
            if not empty:
                break
            empty = [stream for stream in streams if not stream.records and stream.next is not None]
        more = any(stream.records or stream.next is not None for stream in streams)
        total = sum(stream.size for stream in streams)
        return Page(records, total, query.offset + len(records) if more else None)

    def _refill(self, query: Query, streams: Sequence[_Stream], chunk: int) -> None:
        """Read on in some buckets, past what is not looked for."""
        while streams:
            asks, sources = [], []
            for stream in streams:
                part = query._replace(offset=stream.next or 0, limit=chunk)
                layout = self._store.bucket(stream.place).layout
                asks.append(self._store.ask(stream.place, *page_of(layout, part)))
                sources.append((stream, layout, part))
            for (stream, layout, part), reply in zip(sources, self._store.ask_all(asks), strict=True):
                page = page_in(layout, part, reply)
                stream.records, stream.next, stream.size = page.records[::-1], page.next, page.total
            streams = [stream for stream in streams if not stream.records and stream.next is not None]

    def counts(self) -> Counts:
        """Do what the contract says."""
        tail = bulk(expiring())
        asks = [
            self._store.ask(place, COUNTS, self._store.bucket(place).layout.index + tail)
            for place in self._store.places
        ]
        return Counts(*summed(self._store.ask_all(asks)))

    def prune(self, limit: int, lapsed_before: int | None, prefix: str, offset: int) -> Pruned:
        """Do what the contract says."""
        places = Places(self._store, "orphaned")
        total = places.total if lapsed_before is None else sum(places.upto([lapsed_before])[0])
        starts, ends = places.split(min(offset, total)), places.split(min(offset + limit, total))
        asks = []
        for place, (start, end) in enumerate(zip(starts, ends, strict=True)):
            if end > start:
                tail = self._store.bucket(place).pruning(end - start, lapsed_before, prefix, start)
                asks.append(self._store.ask(place, PRUNE, tail))
        return Pruned(*(summed(self._store.ask_all(asks)) or (0, 0)))


class _Stream:
    """One bucket while it is read. ``records``: what was read and not merged, the last one first."""

    def __init__(self, place: int) -> None:
        self.place = place
        self.records: list[Record] = []
        self.next: int | None = 0
        self.size = 0

    def key(self, query: Query) -> float:
        """Return where its next lock stands in the order."""
        record = self.records[-1]
        if query.order == "left":
            value = float(record.until)
        else:
            beyond = record.fence / 1000 - record.at  # a fence tells more than a time
            value = -(record.at + (beyond if 0 < beyond < 1 else 0))
        return -value if query.descending else value


def _end(places: Places, query: Query, number: int) -> tuple[Numbers, float]:
    """Return the places of the buckets where ``number`` locks from the offset on end, and the time that this is.

    All that end in the same millisecond are within: of a page that is not whole what comes behind it is left out.
    """
    ending = sum(places.ending)
    if query.descending:
        position = places.total - query.offset - number
        if not _looks(query):
            return places.split(position), (
                inf if position >= ending else places.cut(position).time if position else -inf
            )
        if position <= 0:
            return places.none, -inf
        if position >= ending:
            return places.ending, inf
        cut = places.cut(position)
        return cut.before, cut.time + 1
    position = query.offset + number
    if not _looks(query):
        return places.split(position), (inf if position >= ending else places.cut(position).time + 1)
    if position >= ending:
        return places.sizes, inf
    cut = places.cut(position)
    return (cut.before, cut.time) if sum(cut.before) == position else (cut.upto, cut.time + 1)


def _looks(query: Query) -> bool:
    return bool(query.text or query.waiting or query.task or query.row)
