"""How the body of a ``OnceTask`` is run: by a worker, or directly and eagerly."""

from __future__ import annotations

import logging
import os
from typing import Any

from celery.exceptions import Retry

from django_tasklock.backends import get_backend
from django_tasklock.celery.busy import reject
from django_tasklock.celery.delivered import Delivered
from django_tasklock.celery.message import KEPT, token_of
from django_tasklock.celery.promotion import promote
from django_tasklock.celery.unique import seconds_until
from django_tasklock.exceptions import BackendUnavailable, TaskLockAcquireError
from django_tasklock.handover import keep
from django_tasklock.holds import holds_here
from django_tasklock.reports import told_conflict
from django_tasklock.running import Running

__all__ = ["Direct", "OnceRun"]

logger = logging.getLogger("django_tasklock")

MARGIN = 60.0  # seconds that a kept lock outlives the countdown: the message may wait in its queue


class OnceRun(Delivered):
    """A worker's run of a ``OnceTask``."""

    keeps = False
    """Whether ``retry()`` keeps the lock."""
    _handle = ""
    """Of what it is kept under: the next try brings it, and may come before this one has left."""

    def _acquire(self) -> bool:
        taken = super()._acquire()
        if taken and self.keeps:
            self._handle = os.urandom(16).hex()
            self.message.request.__dict__[KEPT] = (self.lock, self._handle)
        return taken

    def _leave(self, ours: bool, *how: Any) -> None:
        error = how[1]
        if ours and self.keeps and isinstance(error, Retry):
            keep(self.lock, max(0.0, seconds_until(error.when) or 0.0) + MARGIN, token_of(self._handle))
        else:
            super()._leave(ours, *how)
            if ours and not self.lines_up and self._awaited():
                promote(self.name, self.task.app)

    def _awaited(self) -> bool:
        """Whether a caller of this task chose to be parked although the task itself does not park."""
        try:
            return get_backend().flagged(self.name)
        except BackendUnavailable as error:
            logger.warning(
                "lock %r: what may be parked behind it is left to the workers' next look: %s", self.name, error
            )
            return False


class Direct(Running):
    """A direct or eager call: there is no message to put aside, and nobody else may be waited for by oneself."""

    def _acquire(self) -> bool:
        hold = holds_here().get(self.lock.name)
        if hold is not None and not (hold.released or hold.lost):
            self.lock.conflict = TaskLockAcquireError(
                f"lock {self.lock.name!r} is held by this very thread, which called its task again", name=self.lock.name
            )
            return False
        return super()._acquire()

    def _conflict(self) -> bool:
        if self.on_conflict == "reject":
            error = self._met()
            told_conflict(error, "reject")
            reject(error)
        return super()._conflict()
