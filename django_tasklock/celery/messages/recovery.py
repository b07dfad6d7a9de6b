"""Putting back the messages of dead workers where no worker lives, from a process that is none."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator

from celery.app import app_or_default

from django_tasklock.celery.broker import message_lease
from django_tasklock.celery.messages.index import MUTEX, Index, Unacknowledged, temporary_index
from django_tasklock.exceptions import BackendUnavailable

MUTEX_TIMEOUT = 5.0
"""Seconds for which the workers leave it to this process to put messages back."""


class LapsedMessages:
    """The messages whose lease is over. All methods raise ``BackendUnavailable`` if the broker does not answer."""

    def __init__(self, index: Index, lease: float) -> None:
        self._index = index
        self._lease = lease
        self._renewed: dict[str, float] = {}

    @classmethod
    @contextlib.contextmanager
    def open(cls) -> Iterator[LapsedMessages | None]:
        """Enter with the messages of the project's broker; with ``None`` if they have no leases."""
        app = app_or_default()
        lease = message_lease(app)
        if lease is None:
            yield None
            return
        with app.connection_for_read() as connection:
            errors = (*connection.connection_errors, *connection.channel_errors)
        try:
            with temporary_index(app, lease) as index:
                index.declare_exchanges(app.amqp.queues.values())
                yield cls(index, lease)
        except errors as error:
            raise BackendUnavailable(f"the broker could not be asked: {error}") from error

    @property
    def problem(self) -> str:
        """Why nothing may be put back now; empty if it may."""
        try:
            uptime = self._index.uptime()
        except self._index.refusal:
            uptime = None  # the workers go without it as well
        if uptime is not None and uptime < self._lease:
            return f"the broker was started {uptime:.0f} s ago, and workers have a lease's time to renew theirs"
        return ""

    def find(self, age: float) -> dict[str, float]:
        """Return the tags of messages whose lease has been over for ``age`` seconds, each with how long it has been."""
        self._renewed = self._index.lapsed()
        over = {tag: time.time() - self._lease - at for tag, at in self._renewed.items()}
        return {tag: since for tag, since in over.items() if since >= age}

    def confirm(self, tags: dict[str, float], *, dry_run: bool) -> set[str]:
        """Return those of the messages that nobody renewed or put back since they were found.

        None while another process puts messages back. Unless it is a dry run, the workers then leave that to this
        process for some seconds.
        """
        if not dry_run and not self._index.set_once(MUTEX, MUTEX_TIMEOUT):
            return set()
        now = self._index.lapsed()
        return {tag for tag in tags if now.get(tag) == self._renewed[tag]}

    def describe(self, tag: str) -> Unacknowledged | None:
        """Return a message; ``None`` if it is acknowledged."""
        return self._index.unacknowledged(tag)

    def put_back(self, tag: str) -> None:
        """Put a message back into its queue, where it is the next."""
        self._index.requeue(tag)
