"""The lock that ``retry()`` keeps for the next try of its message."""

from __future__ import annotations

import os
from typing import Any

from celery.exceptions import Retry

from django_tasklock.celery.delivery.history import History
from django_tasklock.celery.message import token_of
from django_tasklock.celery.state import state_of
from django_tasklock.celery.unique import seconds_until
from django_tasklock.counts import TIMED_OUT
from django_tasklock.locks.lock import TaskLock
from django_tasklock.locks.transfer import keep_for
from django_tasklock.types import monotonic

POLL_INTERVAL = 5.0  # seconds between two checks whether the lock that is waited for is kept by ``retry()``
MARGIN = 60.0  # seconds that a kept lock outlives the countdown: the message may wait in its queue


class LockOverRetry:
    """The lock of a task with ``retry_keeps_lock``: the message that ``retry()`` sends carries a handle of it."""

    def __init__(self, lock: TaskLock, request: Any) -> None:
        self.lock = lock
        self.request = request
        self._handle = ""

    def wait(self, history: History, patience: float) -> bool:
        """Wait for the lock, or defer the message if the lock is kept by ``retry()``.

        The message that the lock is kept for needs a worker slot, perhaps this one.
        """
        ends = monotonic() + patience
        while True:
            met = self.lock.busy_record
            if met is not None and met.holder.kept:
                history.defer()
            remaining = ends - monotonic()
            if remaining <= 0:
                return False
            self.lock.on_timeout = "" if remaining > POLL_INTERVAL else TIMED_OUT
            if self.lock.acquire(blocking_timeout=min(remaining, POLL_INTERVAL)):
                return True

    def store_handle(self) -> None:
        """Store the lock and a handle for ``retry()``. The next try may arrive before this one has ended."""
        self._handle = os.urandom(16).hex()
        state_of(self.request).kept_lock = (self.lock, self._handle)

    def keep(self, error: BaseException | None) -> bool:
        """Keep the lock until after the countdown if the run ended with ``retry()``. Return whether it did."""
        if not isinstance(error, Retry) or state_of(self.request).kept_lock is None:
            return False
        keep_for(self.lock, max(0.0, seconds_until(error.when) or 0.0) + MARGIN, token_of(self._handle))
        return True
