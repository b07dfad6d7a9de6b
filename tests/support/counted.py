"""What was counted, as tests look at it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

from django_tasklock import counts


def counted(kind: str) -> dict[str, int]:
    """What this process has counted of a kind and not written yet, by event."""
    return _by_event(kind, counts.pending())


def durations(event: str, kind: str) -> int:
    """The sum of the durations of an event, in milliseconds."""
    return sum(one.milliseconds for one in counts.pending() if (one.event, one.kind) == (event, kind))


def written(kind: str) -> dict[str, int]:
    """What all processes have written of a kind, by event."""
    return _by_event(kind, counts.read_totals())


def _by_event(kind: str, all_of_it: Iterable[Any]) -> dict[str, int]:
    found = Counter[str]()
    for one in all_of_it:
        if one.kind == kind:
            found[one.event] += one.number
    return dict(found)
