"""Locked functions called by a task's body, and the calls of ``task.map()``, ``starmap()`` and ``chunks()``.

For these three Celery's own task calls the other one once per element.
"""

from __future__ import annotations

import logging
from typing import Any, cast

from celery._state import _task_stack, get_current_worker_task  # type: ignore[attr-defined]

from django_tasklock.celery.delivery.duplicates import Earlier
from django_tasklock.celery.host import is_continued
from django_tasklock.celery.message import Message, predecessor_request
from django_tasklock.celery.state import STATE, state_of
from django_tasklock.decorators.call import Call, Caller, Skipped
from django_tasklock.guards.claim import Claim
from django_tasklock.locks.lease import Lease, Refusal
from django_tasklock.locks.lock import TaskLock

logger = logging.getLogger("django_tasklock")

RAISING_IN_MAP = ("raise", "wait")
"""The values of ``on_conflict`` that raise inside a map as well, as their authors expect."""


class HelperCaller(Caller):
    """A task's body that calls a helper under a lock, or another task. Whether Celery retries is not known yet.

    So the row of a helper that fails is failed. It becomes claimable once the task's message is sent again: by
    ``retry()``, by ``autoretry_for`` if the task does not catch the error, or because a lock is busy.
    """

    def will_retry(self, error: BaseException) -> bool:
        """Tell whether the helper's error says so by itself; of an eager task, whether Celery would retry it."""
        task = get_current_worker_task()
        if task is None or task.request.is_eager:
            return super().will_retry(error)
        return is_continued(error)

    def row_failed(self, claim: Claim) -> None:
        """Remember the row until the task has ended."""
        task = get_current_worker_task()
        if task is not None:
            state_of(task.request).failed_rows.append(claim)


def give_back_rows(sender: Any = None, headers: Any = None, body: Any = None, **details: Any) -> None:
    """Make the rows that helpers have failed claimable if this message runs it again (``before_task_publish``)."""
    fields = body if isinstance(body, dict) else headers or {}  # with protocol 1 Celery's own are in the body
    request = predecessor_request(sender, fields.get("id"))
    state = None if request is None else request.__dict__.get(STATE)
    nesting = getattr(request, "replaced_task_nesting", 0) or 0
    if state is None or (fields.get("replaced_task_nesting") or 0) != nesting:  # a next page goes on behind them
        return
    while state.failed_rows:
        claim = state.failed_rows.pop()
        try:
            if claim.valid:  # otherwise somebody has claimed it meanwhile
                claim.give_back()
        except Exception:
            logger.exception("%s could not be made claimable for the next try of %s", claim.name, sender)


class NestedCaller(HelperCaller):
    """A task's body that calls a locked function, which must not put the body's message aside."""

    def __init__(self, call: Call) -> None:
        super().__init__(call)
        self.lock = cast(TaskLock, call.lock)
        self.earlier = Earlier(Message(get_current_worker_task()), comes_again=False)
        self.patience, self.wait = self.wait, 0.0
        if self.patience:
            self.action = ""

    def on_busy(self, refusal: Refusal) -> Lease | Skipped:
        """Acquire the lock also from a dead delivery of this message. Raises ``Duplicate`` if a living one holds it."""
        answer = self.earlier.take_over(self.lock, refusal)
        if isinstance(answer, Refusal) and self.patience:
            answer = self.lock.take(self.patience)
        return answer if isinstance(answer, Lease) else self.call.skip_or_raise(answer.error)

    async def aon_busy(self, refusal: Refusal) -> Lease | Skipped:
        """Do what ``on_busy`` does, for coroutines."""
        answer = await self.earlier.atake_over(self.lock, refusal)
        if isinstance(answer, Refusal) and self.patience:
            answer = await self.lock.atake(self.patience)
        return answer if isinstance(answer, Lease) else self.call.skip_or_raise(answer.error)


def skip_element(call: Call) -> None:
    """Make ``call`` one by a map: with most values of ``on_conflict`` it is skipped instead of put aside.

    A busy element must not prevent the others from running.
    """
    if call.on_conflict not in RAISING_IN_MAP:
        call.on_conflict = "skip"


def is_map(task: Any) -> bool:
    """Return whether ``task`` is one of Celery's tasks that call another one for each element."""
    return task is not None and task.name in ("celery.map", "celery.starmap")


def is_element(task: Any) -> bool:
    """Return whether the current call of ``task`` was made by a map."""
    stack = _task_stack.stack
    return len(stack) > 1 and stack[-1] is task and is_map(stack[-2])
