"""A task's own body that is run while it has a permit: without one, its message is put aside."""

from __future__ import annotations

import contextlib
import logging
import random
from collections.abc import Iterable, Iterator
from typing import Any, NoReturn

from celery._state import get_current_task, get_current_worker_task

from django_tasklock.backends import get_backend
from django_tasklock.celery.delivery.defer import defer, reject
from django_tasklock.celery.message import Message
from django_tasklock.decorators.concurrency import LimitedRun, PermitOfCall
from django_tasklock.exceptions import BackendUnavailable
from django_tasklock.locks import events
from django_tasklock.locks.holder import alive
from django_tasklock.locks.semaphore import ConcurrencyLimiter

logger = logging.getLogger("django_tasklock")

FIRST = 1.0  # seconds to the first try again
LONGEST = 30.0  # the most: how long a permit is free before somebody looks, if only this message wants it


def kind_of(limited: PermitOfCall) -> type[LimitedRun] | None:
    """How to run a function with this limiter here: as the body of the task that a worker runs, or as any other."""
    task: Any = get_current_worker_task()
    if task is None or not task.request.id or task.request.is_eager or get_current_task() is not task:
        return None
    return LimitedTask if any(limited is one for one in _limiters_of(task)) else None


def _limiters_of(task: Any) -> Iterator[PermitOfCall]:
    function: Any = getattr(task, "run", None)
    while function is not None:
        if isinstance(limited := getattr(function, "limiter", None), PermitOfCall):
            yield limited
        function = getattr(function, "__wrapped__", None)  # other decorators may be around it


def limiter_names(task: Any, args: Any, kwargs: Any) -> set[str]:
    """The limiters of one call of a task, as its decorated function would name them."""
    names = set()
    for limited in _limiters_of(task):
        bound = (task, *args) if "self" in limited.template.signature.parameters else args
        with contextlib.suppress(Exception):  # arguments that do not fit never ran
            names.add(limited.template.name(tuple(bound), kwargs))
    return names


def free_permits(task: Any, task_id: str, names: Iterable[str]) -> bool:
    """Remove what dead processes have left of this message in these limiters; False if one that has a permit lives."""
    freed = True
    for name in names:
        permits = get_backend().permits
        for record in permits.members(name):
            if record.holder.task_id != task_id or record.holder.task != task.name:
                continue
            if alive(record.holder) is not False:
                freed = False
            elif permits.remove(name, record.token) is not None:
                logger.warning("limiter %r: a permit is free: the process of %s[%s] died", name, task.name, task_id)
    return freed


class LimitedTask(LimitedRun):
    """The run of a message by a worker."""

    word = "retry"

    def __init__(
        self, lock: ConcurrencyLimiter, on_conflict: str | None, release_connections: bool | None = None
    ) -> None:
        super().__init__(lock, on_conflict, release_connections)
        self.message = Message(get_current_worker_task())

    def _conflict(self) -> bool:
        error = self._met()
        word = self.on_conflict
        if isinstance(error.__cause__, BackendUnavailable) and word not in ("raise", "wait"):
            return self._skip(error)  # that is what on_unavailable="skip" says
        if word in ("retry", "skip", "reject") and (self._met_myself() or self.message.retries):
            word = "retry"  # what comes back is never left undone: its work has begun, and it may have left a permit
        if word == "retry":
            events.conflict(error, "retry")
            self._put_off()
        if word == "reject":
            if self.message.in_canvas:  # a member without a result would leave the others waiting
                return self._skip(error)
            events.conflict(error, "reject")
            reject(error, self.message)
        return super()._conflict()

    def _met_myself(self) -> bool:
        """Whether a permit is an earlier delivery's of this very message; that of a dead process is free then."""
        permits = get_backend().permits
        try:
            mine = [one for one in permits.members(self.lock.name) if one.holder.task_id == self.message.id]
            for record in mine:
                if alive(record.holder) is False:
                    permits.remove(self.lock.name, record.token)
        except BackendUnavailable:
            return False
        return bool(mine)

    def _put_off(self) -> NoReturn:
        seconds = min(FIRST * 2.0 ** min(self.message.header.get("waits", 0), 16), LONGEST) * random.uniform(1.0, 1.25)
        defer(self.message, self.lock, seconds)
