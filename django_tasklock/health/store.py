"""The lock store and this process's heartbeat."""

from __future__ import annotations

from typing import Any

from django_tasklock.backends import get_backend
from django_tasklock.health import messages
from django_tasklock.health.probe import PATIENCE, Probe
from django_tasklock.locks.heartbeat import heartbeat
from django_tasklock.types import Condition, monotonic

APART = 5.0  # seconds between two clocks from which on it is worth a word: people compare the times they are shown


def locks(patience: float = PATIENCE) -> dict[str, Any]:
    """Return what can be said within ``patience`` seconds. ``healthy`` is the verdict; ``warnings`` do not change it.

    Unhealthy: the store does not answer, or nobody renews the leases of this process: of its locks, or of a worker's
    messages. ``messages`` is there where the project's messages have leases.
    """
    ends = monotonic() + patience
    messages.start()
    condition = _probe.answer(patience)
    store: dict[str, Any] = {"reachable": condition is not None}
    warnings = []
    if condition is not None:
        store |= {
            "backend": type(get_backend()).__name__.removesuffix("Backend").lower(),
            "latency_ms": round(condition.latency * 1000, 3),
            "clock_difference_ms": None if condition.ahead is None else round(condition.ahead * 1000),
            "eviction_policy": condition.policy,
        }
        if condition.policy not in (None, "", "noeviction"):
            warnings.append("the store may evict locks when its memory is full: set maxmemory-policy noeviction")
        if condition.ahead is not None and abs(condition.ahead) - condition.latency / 2 > APART:
            warnings.append("the clock of this machine differs from the store's")
    leases, late = len(heartbeat), heartbeat.late
    alive = heartbeat.alive or (False if leases else None)  # it need not be while there is nothing to renew
    beats = not leases or (alive and not late)
    said, more = messages.facts(ends - monotonic())
    return {
        "healthy": condition is not None and bool(beats) and not messages.late(),
        "store": store,
        "heartbeat": {"alive": alive, "leases": leases, "late_seconds": round(late, 1)},
        **({"messages": said} if said else {}),
        "warnings": warnings + more,
    }


def ask() -> Condition:
    """Return what the store says of itself."""
    return get_backend().condition()


_probe = Probe(ask, "health-store")


def forget() -> None:
    """Let the next caller ask the store anew."""
    _probe.forget()
    messages.forget()
