"""The leases of Celery's messages, as the project's workers report them in the broker."""

from __future__ import annotations

from typing import Any

from django_tasklock.celery.messages.marks import project_lease, project_marks
from django_tasklock.health.probe import Probe


def start_probe() -> None:
    """Start the request to the broker, if messages have leases."""
    if project_lease() is not None:
        _probe.start()


def check_messages(timeout: float) -> tuple[dict[str, Any], list[str]]:
    """Return the state within ``timeout`` seconds, and warnings; nothing if messages have no leases."""
    lease = project_lease()
    if lease is None:
        return {}, []
    marks = _probe.result(timeout)
    if marks is None:
        return {"reachable": False, "lease": lease}, ["the broker does not say which workers renew their messages"]
    current = [mark for mark in marks if mark.is_current]
    state = {
        "reachable": True,
        "lease": lease,
        "workers": len(current),
        "messages": sum(mark.messages for mark in current),
        "stuck": (stuck := sum(mark.stuck for mark in current)),
    }
    if not stuck:
        return state, []
    return state, [f"{stuck} messages do not go on: their workers' slots hang, or their tasks outlive their locks"]


def forget() -> None:
    """Discard the answer, so that the next request asks the broker again."""
    _probe.forget()


_probe = Probe(project_marks, "health-messages")
