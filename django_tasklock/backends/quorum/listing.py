"""The union of the locks of all instances, for lists and the sweep.

It is merged from the beginning of each list, so its cost grows with the offset. A lock of a minority is listed, too: it
is being acquired, was released while an instance did not answer, or has lost its majority. No one holds it.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from django_tasklock.backends.contract.queries import Counts, Page, Pruned, Query
from django_tasklock.backends.quorum.asking import Instances
from django_tasklock.backends.quorum.ballot import most_of
from django_tasklock.backends.quorum.scripts import QuorumKeys, as_leased
from django_tasklock.backends.redis import COUNTS, PRUNE
from django_tasklock.backends.redis.keys import record
from django_tasklock.backends.redis.listing import PAGE
from django_tasklock.conf import expiring
from django_tasklock.types import Record

MOST = 10_000
"""The most locks that one instance is asked for."""


class Listing:
    """The verbs for lists."""

    def __init__(self, instances: Instances, keys: QuorumKeys) -> None:
        self._instances = instances
        self._keys = keys

    def page(self, query: Query) -> Page:
        """Return a page of the union."""
        found = [one for one in self._union(query.which) if query.matches(one)]
        if query.which == "live" and query.order == "age":
            found.sort(key=lambda one: (-one.fence, one.name))
        elif query.which == "live" and query.order == "left":
            found.sort(key=lambda one: (one.until, one.name))
        if query.descending:
            found.reverse()
        ends = query.offset + max(0, query.limit)
        total = getattr(self.counts(), query.which) if query.searches else len(found)
        return Page(found[query.offset : ends], total, ends if len(found) > ends and query.limit > 0 else None)

    def _union(self, which: str) -> list[Record]:
        """Return the locks of all instances, by expiry."""
        layout = self._keys.layout
        arguments = which, "expiry", "", 0, MOST, layout.prefix, layout.queue, expiring(), MOST, MOST, "", ""
        found: dict[str, list[Record]] = {}
        for reply in self._instances.replies(self._instances.ask(PAGE, [self._keys.index], arguments)):
            for one in self._records(which, reply):
                found.setdefault(one.name, []).append(one)
        if which == "orphaned":  # a lapsed lock of a minority had no holder, and may have one on the others
            found = {name: those for name, those in found.items() if len(those) >= self._instances.needed}
        in_order = sorted(found.items(), key=lambda item: (max(one.lease_ends for one in item[1]), item[0]))
        return [as_leased(most_of(those)) for _, those in in_order]

    def _records(self, which: str, reply: list[Any]) -> list[Record]:
        now, _, _, lefts, waits, keys, values = reply
        found = []
        for left, waiting, key, value in zip(
            map(int, lefts.split()), map(int, waits.split()), keys, values, strict=True
        ):
            name = key.decode(errors="backslashreplace").removeprefix(self._keys.prefix)
            shown = record(name, value or b"", now, left, waiting)
            found.append(replace(shown, ttl=left) if which == "orphaned" else shown)
        return found

    def counts(self) -> Counts:
        """Return the counts, each from the instance that has the most."""
        said = self._instances.replies(self._instances.ask(COUNTS, [self._keys.index], [expiring()]))
        return Counts(*map(max, zip(*said, strict=True)))

    def prune(self, limit: int, lapsed_before: int | None, prefix: str, offset: int) -> Pruned:
        """Remove lapsed locks on each instance. Return the number that a majority has removed at least."""
        before = "" if lapsed_before is None else lapsed_before
        arguments = limit, before, self._keys.prefix + prefix, offset
        said = self._instances.replies(self._instances.ask(PRUNE, [self._keys.index], arguments))
        return Pruned(*(sorted(column)[-self._instances.needed] for column in zip(*said, strict=True)))
