"""What ends the run of a message that was not run, told to Celery in its own way. Never seen by a task's author."""

from __future__ import annotations

from celery.exceptions import Ignore


class Parked(Ignore):
    """The message was parked: its state stays ``PARKED`` until it is promoted."""


class Rejected(Ignore):
    """The message is over, unrun; the broker is told that it was rejected (``request.Request``).

    Not Celery's ``Reject``: that leaves its caller waiting for ever, or since Celery 5.7 is a failure with all that
    belongs to one.
    """


class Duplicate(Ignore):
    """Another delivery of this message runs, ran or will run: this one changes nothing, not even its result."""
