"""What can be said of the leases of the project's messages: for checks and health, which know no Celery."""

from __future__ import annotations

from typing import NamedTuple

from celery.app import app_or_default

from django_tasklock.celery.broker import message_lease, own_timeout
from django_tasklock.celery.messages import marks
from django_tasklock.celery.messages.marks import Mark
from django_tasklock.celery.messages.renewal import running
from django_tasklock.celery.messages.timeouts import shortest_lease


class LeaseLengths(NamedTuple):
    """How long the leases are, in seconds."""

    lease: float
    own: float | None
    """The project's own ``visibility_timeout``; ``None``: it has set none."""
    shortest: float
    """The shortest that is renewed often enough."""


def lease_lengths() -> LeaseLengths | None:
    """Return the lease lengths of the project's app; ``None``: its messages have no leases."""
    app = app_or_default()
    lease = message_lease(app)
    return None if lease is None else LeaseLengths(lease, own_timeout(app), shortest_lease())


def workers() -> list[Mark]:
    """Return what the workers of the project's broker say of themselves. Any error may come out of it."""
    return marks.read_marks(app_or_default())


def without_mark(found: list[Mark]) -> list[str]:
    """Return the names of the workers that answer, and have no current mark among ``found``. Takes seconds."""
    return marks.without_mark(app_or_default(), found)


def late() -> float:
    """Return the seconds by which the renewal of this process is late that is most overdue; 0: none is."""
    return max((renewer.late for renewer in running()), default=0.0)
