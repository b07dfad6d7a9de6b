"""What was counted, as tests look at it."""

from __future__ import annotations

from django_tasklock import counts


def counted(kind: str) -> dict[str, int]:
    """What this process has counted of a kind and not written yet, by event."""
    found: dict[str, int] = {}
    for one in counts.pending():
        if one.kind == kind:
            found[one.event] = found.get(one.event, 0) + one.number
    return found


def durations(event: str, kind: str) -> int:
    """The sum of the durations of an event, in milliseconds."""
    return sum(one.milliseconds for one in counts.pending() if (one.event, one.kind) == (event, kind))


def written(kind: str) -> dict[str, int]:
    """What all processes have written of a kind, by event."""
    found: dict[str, int] = {}
    for one in counts.read_totals():
        if one.kind == kind:
            found[one.event] = found.get(one.event, 0) + one.number
    return found
