"""What the instances have counted: each counts what it takes part in, so the greatest of their counts is the truth, or
a little below it where different ones were silent at different times. Split votes count as what each instance saw.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from django_tasklock.backends.contract.metrics import Count, Counted, HoldRecord, Hour, Metrics
from django_tasklock.backends.quorum.asking import Question, Verb
from django_tasklock.backends.redis.metrics import (
    ADD,
    AT_ONCE,
    PAST,
    TOTALS,
    Counts,
    hold_of,
    hours_in,
    is_whole,
    parts,
    reading,
    totals_in,
)
from django_tasklock.backends.redis.script import bulk

if TYPE_CHECKING:
    from django_tasklock.backends.quorum import QuorumBackend


class QuorumMetrics(Metrics):
    """The counts of a ``QuorumBackend``."""

    def __init__(self, backend: QuorumBackend) -> None:
        self._backend = backend
        self._layout = backend.verbs.keys.layout
        self._past = f"{self._layout.prefix.removesuffix(':')}#past:"

    def totals(self) -> Counted:
        return greatest(totals_in(parts(reply)) for reply in self._backend.rounds.run(self._read("")))

    def hours(self, number: int) -> list[Hour]:
        found: dict[int, list[Counts]] = {}
        for reply in self._backend.rounds.run(self._read(str(number))):
            for at, counts in hours_in(parts(reply)).items():
                found.setdefault(at, []).append(counts)
        return [Hour(at, greatest(found[at])) for at in sorted(found)]

    def _read(self, hours: str) -> Verb[list[Any]]:
        offset = 0
        while True:
            replies = self._backend.verbs.said((yield Question(TOTALS, reading(self._layout, hours, offset))))
            offset += AT_ONCE
            if is_whole(replies, offset):
                return replies

    def add(self, event: str, kind: str) -> None:
        self._backend.rounds.run(self._add(event, kind))

    def _add(self, event: str, kind: str) -> Verb[list[Any]]:
        tail = self._layout.index + bulk(event) + bulk(kind)
        return self._backend.verbs.said((yield Question(ADD, tail, again=False)))

    def holds(self, name: str, limit: int) -> list[HoldRecord]:
        replies = self._backend.rounds.run(self._holds(name, limit))
        lists = [[hold for text in reply if (hold := hold_of(name, text)) is not None] for reply in replies]
        return max(lists, key=lambda holds: (len(holds), holds[0].ended_at if holds else 0), default=[])

    def _holds(self, name: str, limit: int) -> Verb[list[Any]]:
        return self._backend.verbs.said((yield Question(PAST, bulk(self._past + name) + bulk(limit))))


def greatest(found: Iterable[Counts]) -> Counts:
    """Return of each count the greatest; of what has a duration all buckets of the instance that has most of it: others
    may have seen the same hold end in the next bucket.
    """
    best: dict[tuple[str, str], tuple[Count, Counts]] = {}
    for counts in found:
        together: dict[tuple[str, str], tuple[Count, Counts]] = {}
        for (event, kind), count in counts.items():
            name, _, bucket = event.rpartition(":")
            key = (name if bucket.isdecimal() else event), kind
            total, parts = together.setdefault(key, (Count(), {}))
            together[key] = total.plus(count), {**parts, (event, kind): count}
        for key, one in together.items():
            if key not in best or one[0] > best[key][0]:
                best[key] = one
    return {key: count for _, parts in best.values() for key, count in parts.items()}
