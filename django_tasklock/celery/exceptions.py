"""Exceptions that tell Celery that a message was not run. Code of a task never sees them."""

from __future__ import annotations

from celery.exceptions import Ignore


class Parked(Ignore):
    """The message was parked, or a newer one has replaced it: its result is not that of this delivery."""


class Rejected(Ignore):
    """The message ended without a run; the worker rejects it in the broker (``request.Request``).

    Not Celery's ``Reject``: with that one the caller waits for the result for ever, or, since Celery 5.7, the task
    fails with everything that a failure triggers.
    """


class Duplicate(Ignore):
    """Another delivery of the message runs, ran or will run: this delivery changes nothing, not even its result."""
