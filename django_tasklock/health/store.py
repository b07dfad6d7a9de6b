"""The lock store and this process's heartbeat."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from django.core.exceptions import ImproperlyConfigured

from django_tasklock.backends import get_backend
from django_tasklock.conf import get_settings
from django_tasklock.health import messages, sweeps
from django_tasklock.health.probe import TIMEOUT, Probe
from django_tasklock.locks.heartbeat import heartbeat
from django_tasklock.types import InstanceState, monotonic

MAX_CLOCK_DIFFERENCE = (
    5.0  # seconds of difference between clocks that are worth a warning, as people compare the times shown
)


def check_locks() -> dict[str, Any]:
    """Return the state within ``TIMEOUT`` seconds. ``healthy`` is the verdict; ``warnings`` do not change it.

    Unhealthy: the store does not answer, or the leases of this process are not renewed. ``messages`` is present if the
    project's messages have leases.
    """
    deadline = monotonic() + TIMEOUT
    messages.start_probe()
    sweeps.start_probe()
    has_several_stores = _has_several_stores()
    if has_several_stores:
        _instances.start()
    condition = _probe.result()
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
        if condition.ahead is not None and abs(condition.ahead) - condition.latency / 2 > MAX_CLOCK_DIFFERENCE:
            warnings.append("the clock of this machine differs from the store's")
    if has_several_stores:
        instances, more = _describe_instances(_instances.result(deadline - monotonic()) or ())
        store |= instances
        warnings += more
    leases, late = len(heartbeat), heartbeat.late
    alive = heartbeat.alive or (False if leases else None)  # it need not run without leases
    is_renewing = not leases or (alive and not late)
    state, more = messages.check_messages(deadline - monotonic())
    more += sweeps.check_sweeps(deadline - monotonic())
    return {
        "healthy": condition is not None and bool(is_renewing),
        "store": store,
        "heartbeat": {"alive": alive, "leases": leases, "late_seconds": round(late, 1)},
        **({"messages": state} if state else {}),
        "warnings": warnings + more,
    }


def _has_several_stores() -> bool:
    """Return whether there are several independent stores."""
    try:
        return not isinstance(get_settings().LOCATION, str)
    except ImproperlyConfigured:
        return False  # no valid store, as the probe's thread reports


def _describe_instances(states: Sequence[InstanceState]) -> tuple[dict[str, Any], list[str]]:
    """Return the state of each of several stores, without addresses and error texts, and warnings."""
    if not states:
        return {}, []
    warnings = []
    answering, abstaining = sum(not state.error for state in states), sum(bool(state.abstains) for state in states)
    if answering < len(states):
        warnings.append(f"{answering} of {len(states)} instances of the store answer")
    if abstaining:
        warnings.append(f"{abstaining} of {len(states)} instances of the store came back empty, and do not vote yet")
    instances = [{"reachable": not state.error, "abstains_seconds": state.abstains} for state in states]
    return {"instances": instances}, warnings


_probe = Probe(lambda: get_backend().condition(), "health-store")
_instances = Probe(lambda: get_backend().instance_states(), "health-instances")


def forget() -> None:
    """Discard all answers, so that the next request asks the store again."""
    _probe.forget()
    _instances.forget()
    messages.forget()
    sweeps.forget()
