"""The leases of Celery's messages, as the project's workers report them in the broker."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from django_tasklock.health.probe import Probe

if TYPE_CHECKING:
    from django_tasklock.celery.messages.marks import Mark
    from django_tasklock.celery.messages.report import LeaseLengths


def lease_lengths() -> LeaseLengths | None:
    """Return the lengths of the leases; ``None`` if there are none, or this process does not use Celery."""
    if "celery" not in sys.modules:
        return None
    from django_tasklock.celery.messages import report

    return report.lease_lengths()


def renewal_delay() -> float:
    """Return the seconds by which a renewal is late, if this is a worker's main process; otherwise 0."""
    if "celery" not in sys.modules:
        return 0.0
    from django_tasklock.celery.messages import report

    return report.late()


def start_probe() -> None:
    """Start the request to the broker, if messages have leases."""
    if lease_lengths() is not None:
        _probe.start()


def check_messages(timeout: float) -> tuple[dict[str, Any], list[str]]:
    """Return the state within ``timeout`` seconds, and warnings; nothing if messages have no leases."""
    found = lease_lengths()
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


def read_marks() -> list[Mark]:
    """Return the marks that the workers left in the broker."""
    from django_tasklock.celery.messages import report

    return report.workers()


_probe = Probe(read_marks, "health-messages")
