"""Whether the sweep runs."""

from __future__ import annotations

from django_tasklock.health.probe import Probe
from django_tasklock.operations import overdue_sweep


def start_probe() -> None:
    """Start the request to the database."""
    _probe.start()


def check_sweeps(timeout: float) -> list[str]:
    """Return within ``timeout`` seconds a warning if rows are guarded and no sweep runs."""
    overdue = _probe.result(timeout)
    return [overdue] if overdue else []


def forget() -> None:
    """Discard the answer, so that the next request asks the database again."""
    _probe.forget()


_probe = Probe(overdue_sweep, "health-sweeps")
