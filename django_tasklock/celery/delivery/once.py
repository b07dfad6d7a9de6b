"""How the body of a ``OnceTask`` is run: by a worker, or directly and eagerly."""

from __future__ import annotations

import inspect
import logging
import os
from collections.abc import Mapping
from typing import Any, Literal

from celery._state import get_current_task
from celery.exceptions import Ignore, Reject, Retry
from django.apps import apps

from django_tasklock.backends import get_backend
from django_tasklock.celery.delivery.elements import KEPT_IN_MAP, maps
from django_tasklock.celery.delivery.run import Delivered
from django_tasklock.celery.message import KEPT, token_of
from django_tasklock.celery.parking.promotion import promote
from django_tasklock.celery.unique import seconds_until
from django_tasklock.conf import spans
from django_tasklock.decorators.call import Running
from django_tasklock.exceptions import BackendUnavailable, TaskLockAcquireError
from django_tasklock.guards.guard import StateGuard
from django_tasklock.locks import events
from django_tasklock.locks.lease import leases_here
from django_tasklock.locks.lock import TaskLock
from django_tasklock.locks.transfer import follow, keep
from django_tasklock.types import monotonic

logger = logging.getLogger("django_tasklock")

Way = Literal["message", "eager", "call"]
"""How a task was called: sent to a worker, ``apply()``, or like a function."""

LOOK = 5.0  # seconds between two looks of who waits for a lock that may be kept while it waits
MARGIN = 60.0  # seconds that a kept lock outlives the countdown: the message may wait in its queue


class OnceRun(Delivered):
    """A worker's run of a ``OnceTask``."""

    keeps = False
    """Whether ``retry()`` keeps the lock."""
    patience = 0.0
    """Seconds for which ``wait`` waits."""
    _handle = ""
    """Of what it is kept under: the next try brings it, and may come before this one has left."""

    def _wait(self) -> bool:
        """Not for a lock that ``retry()`` keeps: the message that it is kept for needs a slot, this one perhaps."""
        if not self.keeps:
            return self.lock.acquire()
        ends = monotonic() + self.patience
        while True:
            met = self.lock.met
            if met is not None and met.holder.kept:
                self._put_off()
            left = ends - monotonic()
            if left <= 0:
                return False
            if self.lock.acquire(blocking_timeout=min(left, LOOK)):
                return True

    def _acquire(self) -> bool:
        taken = super()._acquire()
        if taken and self.keeps:
            self._handle = os.urandom(16).hex()
            self.message.request.__dict__[KEPT] = (self.lock, self._handle)
        return taken

    def _leave(self, ours: bool, *how: Any) -> None:
        error = how[1]
        if ours and isinstance(error, Retry) and KEPT in self.message.request.__dict__:
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
    """A direct call: there is no message to put aside, and nobody else may be waited for by oneself."""

    def _acquire(self) -> bool:
        hold = leases_here().get(self.lock.name)
        if hold is not None and not (hold.released or hold.lost):
            self.lock.conflict = TaskLockAcquireError(
                f"lock {self.lock.name!r} is held by this very thread, which called its task again", name=self.lock.name
            )
            return False
        return super()._acquire()


class Element(Direct):
    """One call of ``task.map()``, ``starmap()`` or ``chunks()``: the others have a right to run."""

    def _conflict(self) -> bool:
        return super()._conflict() if self.on_conflict in KEPT_IN_MAP else self._skip(self._met())


class RejectedHere(Reject, Ignore):
    """The ``Reject`` of ``apply()``, whose state is ``REJECTED``; no failure for ``autoretry_for=(Exception,)``."""


class Eager(Direct):
    """``apply()``, or ``delay()`` where tasks are always eager."""

    def _conflict(self) -> bool:
        if self.on_conflict == "reject":
            error = self._met()
            events.conflict(error, "reject")
            raise RejectedHere(str(error), requeue=False)
        return super()._conflict()


def made(
    task: Any,
    name: str,
    terms: Mapping[str, Any],
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    header: Mapping[str, Any],
    way: Way,
) -> Running:
    """The run of one call on these terms. ``header``: that of the message, if a worker was sent one."""
    conflict = terms["on_conflict"]
    waits = {"timeout": terms["timeout"], "lease": terms["lease"], "on_unavailable": terms["on_unavailable"]}
    if conflict == "wait":  # by default for as long as its holder may have it
        waits["blocking_timeout"] = terms["blocking_timeout"] or spans(terms["timeout"], terms["lease"], name)[0] / 1000
    lock = TaskLock(name, **waits)
    row = row_of(task, args, kwargs)
    if way != "message":
        kind = Eager if way == "eager" else Element if maps(get_current_task()) else Direct
        return kind(lock, conflict, *row, None, task.release_connections)
    run = OnceRun(lock, conflict, *row, terms["queue_limit"], task.release_connections)
    run.keeps = terms["retry_keeps_lock"]
    run.patience = lock.terms.patience
    if header.get("kept"):
        follow(lock, token_of(header["kept"]))
    return run


def row_of(task: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[Any, Any, StateGuard | None]:
    """Model, primary key and guard of the row that a call works on, if its task has a guard."""
    if task.guard is None:
        return None, None, None
    bound = inspect.signature(task.run).bind(*args, **kwargs)
    bound.apply_defaults()
    model = apps.get_model(task.model) if isinstance(task.model, str) else task.model
    return model, bound.arguments[task.pk], task.guard
