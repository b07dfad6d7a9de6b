"""The call of a task's own body under a concurrency limiter: without a permit, its message is put aside."""

from __future__ import annotations

import logging
import random
from typing import Any, NoReturn, cast

from celery._state import get_current_task, get_current_worker_task

from django_tasklock.backends import get_backend
from django_tasklock.celery.definition import limiters_of
from django_tasklock.celery.delivery.defer import defer, reject
from django_tasklock.celery.message import Message
from django_tasklock.decorators.call import Call, Caller, Skipped
from django_tasklock.decorators.concurrency import PermitOfCall
from django_tasklock.exceptions import BackendUnavailable
from django_tasklock.locks import events
from django_tasklock.locks.holder import alive
from django_tasklock.locks.lease import Lease, Refusal
from django_tasklock.locks.semaphore import ConcurrencyLimiter

logger = logging.getLogger("django_tasklock")

FIRST_DELAY = 1.0  # seconds until the first new attempt
LONGEST_DELAY = 30.0  # the longest: a free permit stays unused for so long if only this message waits for it


def limits_body(permit: PermitOfCall) -> bool:
    """Return whether a call under this limiter is the body of the worker's current task."""
    task: Any = get_current_worker_task()
    if task is None or not task.request.id or task.request.is_eager or get_current_task() is not task:
        return False
    return any(permit is one for one in limiters_of(task))


class PermitTaskCaller(Caller):
    """A worker that calls a task's body for a message. By default its ``on_conflict`` is ``retry``."""

    def __init__(self, call: Call, permit: PermitOfCall) -> None:
        call.on_conflict = permit.on_conflict or "retry"
        super().__init__(call)
        self.lock = cast(ConcurrencyLimiter, call.lock)
        self.message = Message(get_current_worker_task())

    def on_busy(self, refusal: Refusal) -> Lease | Skipped:
        """Put the message aside, skip it, or raise."""
        error, action = refusal.error, self.call.on_conflict
        if isinstance(error.__cause__, BackendUnavailable) and action not in ("raise", "wait"):
            return self.call.skip(error)  # as on_unavailable="skip" demands
        if action in ("retry", "skip", "reject") and (self._has_own_permit() or self.message.is_continuation):
            # Never skip a message that was started before: its work has begun, and it may still hold a permit.
            action = "retry"
        if action == "retry":
            events.conflict(error, "retry")
            self._defer()
        if action == "reject":
            if self.message.in_canvas:  # without this member's result the others would wait for ever
                return self.call.skip(error)
            events.conflict(error, "reject")
            reject(error, self.message)
        return self.call.skip_or_raise(error)

    def _has_own_permit(self) -> bool:
        """Return whether an earlier delivery of this message has a permit. Permits of dead processes are freed."""
        permits = get_backend().permits
        try:
            own_permits = [one for one in permits.members(self.lock.name) if one.holder.task_id == self.message.id]
            for record in own_permits:
                if alive(record.holder) is False and (removed := permits.remove(self.lock.name, record.token)):
                    events.count_forced(removed, "limiter")
        except BackendUnavailable:
            return False
        return bool(own_permits)

    def _defer(self) -> NoReturn:
        seconds = min(FIRST_DELAY * 2.0 ** min(self.message.header.get("waits", 0), 16), LONGEST_DELAY)
        defer(self.message, f"limiter {self.lock.name!r} is busy", seconds * random.uniform(1.0, 1.25))
