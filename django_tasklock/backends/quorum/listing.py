"""The union of the locks of all instances, for lists and the sweep.

It is merged from the beginning of each list, so its cost grows with the offset. A lock of a minority is listed, too: it
is being acquired, was released while an instance did not answer, or has lost its majority. No one holds it.
"""

from __future__ import annotations

from django_tasklock.backends.contract.lists import Counts, Which
from django_tasklock.backends.quorum.asking import Instances
from django_tasklock.backends.quorum.ballot import most_of
from django_tasklock.backends.quorum.scripts import QuorumKeys, as_leased
from django_tasklock.backends.redis import COUNTS, LIST, PRUNE, listed, listing
from django_tasklock.conf import expiring
from django_tasklock.types import Record

MARGIN = 200
"""The locks read beyond a part: the order of the instances may differ for locks of the same moment."""


class Listing:
    """The verbs for lists."""

    def __init__(self, instances: Instances, keys: QuorumKeys) -> None:
        self._instances = instances
        self._keys = keys

    def records(self, which: Which, offset: int, limit: int) -> list[Record]:
        """Return a part of the union, by expiry."""
        asked = listing(self._keys.layout, which, 0, offset + limit + MARGIN)
        found: dict[str, list[Record]] = {}
        for reply in self._instances.replies(self._instances.ask(LIST, [self._keys.index], asked)):
            for one in listed(self._keys.layout, reply):
                found.setdefault(one.name, []).append(one)
        if which == "orphaned":  # a lapsed lock of a minority had no holder, and may have one on the others
            found = {name: those for name, those in found.items() if len(those) >= self._instances.needed}
        in_order = sorted((max(one.lease_ends for one in those), name) for name, those in found.items())
        return [as_leased(most_of(found[name])) for _, name in in_order[offset : offset + limit]]

    def counts(self) -> Counts:
        """Return the counts, each from the instance that has the most."""
        said = self._instances.replies(self._instances.ask(COUNTS, [self._keys.index], [expiring()]))
        return Counts(*map(max, zip(*said, strict=True)))

    def prune(self, limit: int) -> int:
        """Remove lapsed locks on each instance. Return the number that a majority has removed at least."""
        said = self._instances.replies(self._instances.ask(PRUNE, [self._keys.index], [limit]))
        return int(sorted(said)[-self._instances.needed])
