"""Exceptions that tell Celery that a message was not run. A task's author never sees them."""

from __future__ import annotations

from celery.exceptions import Ignore


class Parked(Ignore):
    """A message was parked: its state stays ``PARKED`` until it is promoted."""


class Rejected(Ignore):
    """A message is over, unrun; the broker is told that it was rejected (``request.Request``).

    Not Celery's ``Reject``: that leaves its caller waiting for ever, or since Celery 5.7 is a failure with all that
    belongs to one.
    """


class Duplicate(Ignore):
    """A message runs, ran or will run by another delivery: this one changes nothing, not even its result."""
