"""The leases of Celery's messages, as the project's workers report them in the broker."""

from __future__ import annotations

from typing import Any

from django_tasklock.celery.messages import report
from django_tasklock.health.probe import Probe


def start_probe() -> None:
    """Start the request to the broker, if messages have leases."""
    if report.lease_lengths() is not None:
        _probe.start()


def check_messages(timeout: float) -> tuple[dict[str, Any], list[str]]:
    """Return the state within ``timeout`` seconds, and warnings; nothing if messages have no leases."""
    found = report.lease_lengths()
    if found is None:
        return {}, []
    marks = _probe.result(timeout)
    if marks is None:
        return {"reachable": False, "lease": found.lease}, [
            "the broker does not say which workers renew their messages"
        ]
    current = [mark for mark in marks if mark.is_current]
    late = max((mark.late for mark in current), default=0.0)
    state = {
        "reachable": True,
        "lease": found.lease,
        "workers": len(current),
        "messages": sum(mark.messages for mark in current),
        "late_seconds": late,
        "stuck": (stuck := sum(mark.stuck for mark in current)),
    }
    warnings = [f"a worker has renewed its messages {late:.1f} s late within the last hour"] if late else []
    if stuck:
        warnings.append(f"workers have given back {stuck} messages: their slots, or the tasks in them, do not go on")
    return state, warnings


def forget() -> None:
    """Discard the answer, so that the next request asks the broker again."""
    _probe.forget()


_probe = Probe(report.workers, "health-messages")
