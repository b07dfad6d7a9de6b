"""Facts about the leases of the project's messages, for system checks and health."""

from __future__ import annotations

from typing import NamedTuple

from celery.app import app_or_default
from celery.loaders.app import AppLoader

from django_tasklock.celery.broker import message_lease, own_timeout
from django_tasklock.celery.messages import marks, queues
from django_tasklock.celery.messages.marks import Mark
from django_tasklock.celery.messages.renewal import running
from django_tasklock.celery.messages.timeouts import shortest_lease


class LeaseLengths(NamedTuple):
    """The lengths of the leases, in seconds."""

    lease: float
    own: float | None
    """The project's own ``visibility_timeout``, or ``None``."""
    shortest: float
    """The shortest lease that is renewed often enough."""


def lease_lengths() -> LeaseLengths | None:
    """Return the lease lengths of the project's app; ``None`` if it has none here, or its messages have no leases."""
    app = app_or_default()
    lease = message_lease(app) if isinstance(app.loader, AppLoader) else None
    return None if lease is None else LeaseLengths(lease, own_timeout(app), shortest_lease())


def workers() -> list[Mark]:
    """Return the marks of the workers on the project's broker. May raise any error."""
    return marks.read_marks(app_or_default())


def messages_by_queue() -> dict[str, int] | None:
    """Return the number of messages of each queue; ``None`` if the broker is not Redis. May raise any error."""
    return queues.messages_by_queue(app_or_default())


def late() -> float:
    """Return the seconds by which the most overdue renewal of this process is late; 0 if none is."""
    return max((renewer.late for renewer in running()), default=0.0)
