"""Who makes a call under Celery: which ``Caller`` joins in, and those of all calls but that of a message's own body.

Helpers under a lock inside of a task's body; tasks that are called directly, eagerly, or by ``task.map()``,
``starmap()`` and ``chunks()``, where Celery's own task calls the other one once per element; bodies under a limiter.
"""

from __future__ import annotations

import logging
import random
from asyncio import CancelledError
from collections.abc import Callable, Mapping
from typing import Any, Literal, NoReturn, cast

from celery._state import _task_stack, get_current_task, get_current_worker_task  # type: ignore[attr-defined]
from celery.exceptions import Ignore, Reject

from django_tasklock.backends import get_backend
from django_tasklock.celery import rates
from django_tasklock.celery.canvas import drop_links
from django_tasklock.celery.definition import limiters_of, lock_of, patience_of, row_of
from django_tasklock.celery.delivery.defer import put_off, resolve
from django_tasklock.celery.delivery.duplicates import Earlier
from django_tasklock.celery.delivery.run import BodyCaller, TaskCaller, run_body
from django_tasklock.celery.host import ended_by_worker, is_continued
from django_tasklock.celery.message import Message, header_of, left_mark, predecessor_request
from django_tasklock.celery.options import OnceOptions
from django_tasklock.celery.state import STATE, state_of
from django_tasklock.context import ensure_enclosing_held
from django_tasklock.decorators.call import Call, Caller, Skipped
from django_tasklock.decorators.concurrency import PermitOfCall
from django_tasklock.decorators.rates import LimitOfCall
from django_tasklock.exceptions import BackendUnavailable, LockLost, TaskLockAcquireError
from django_tasklock.guards.claim import Claim
from django_tasklock.locks import events
from django_tasklock.locks.lease import Lease, Refusal
from django_tasklock.locks.lock import TaskLock
from django_tasklock.rates.reservation import Reservation
from django_tasklock.types import Ending

logger = logging.getLogger("django_tasklock")

RAISING_IN_MAP = ("raise", "wait")
"""The values of ``on_conflict`` that raise inside a map as well, as their authors expect."""
FIRST_DELAY = 1.0  # seconds until the first new attempt to get a permit
LONGEST_DELAY = 30.0  # the longest: a free permit stays unused for so long if only this message waits for it
Invocation = Literal["message", "eager", "call"]
"""How a task was called: from a message, by ``apply()``, or like a function."""


def join(decorated: object, call: Call) -> Caller | None:
    """Return the caller of the worker's current task body, or of a call inside of it. ``Host.join`` of Celery."""
    task: Any = get_current_worker_task()
    if task is None or not task.request.id:
        return None
    here: Any = get_current_task()
    of_body = here is task and any(decorated is one for one in (lock_of(task), *limiters_of(task)))
    if task.request.is_eager:
        return BodyCaller(call, task.request) if of_body else None
    if isinstance(decorated, PermitOfCall):
        return PermitTaskCaller(call, decorated) if of_body else None
    if of_body:
        return TaskCaller(call)
    stack = _task_stack.stack
    if here is not None and lock_of(here) is decorated and len(stack) > 1 and is_map(stack[-2]):
        skip_element(call)
    return NestedCaller(call)


def take_turn(limited: LimitOfCall, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Reservation | None:
    """Wait until the body of the worker's current task may start. Return ``None`` for any other call.

    Raises ``Retry`` if that is later, or not known now; ``RateLimitExceeded`` if it is too late.
    """
    turn = rates.next_turn(limited, args, kwargs)
    if turn is None:
        return None
    try:
        reservation = turn.take()
        ensure_enclosing_held()
    except (BackendUnavailable, LockLost) as error:
        turn.message.carry(**{rates.RATE: turn.unbooked()})
        put_off(turn.message, error)
    return reservation


def tenant_of(decorated: object) -> str | None:
    """Return the tenant of the publisher, for the call of the worker's current task body."""
    task: Any = get_current_worker_task()
    return header_of(task.request).get("tenant") if is_body(decorated) else None


def is_body(decorated: object) -> bool:
    """Return whether ``decorated`` is the lock of the body that the worker calls for its current message."""
    task: Any = get_current_worker_task()
    if task is None or not task.request.id or task.request.is_eager:
        return False
    return get_current_task() is task and lock_of(task) is decorated


class HelperCaller(Caller):
    """A task's body that calls a helper under a lock, or another task. Whether Celery retries is not known yet.

    So the row of a helper that fails is failed. It becomes claimable once the task's message is sent again: by
    ``retry()``, by ``autoretry_for`` if the task does not catch the error, or because a lock is busy.
    """

    def __init__(self, call: Call) -> None:
        super().__init__(call)
        task = get_current_worker_task()
        if task is not None and task.request.id and not task.request.is_eager:
            self.mark = left_mark(task.name, task.request.id)
            self.closing_patience = patience_of(task)

    def will_retry(self, error: BaseException) -> bool:
        """Tell whether the helper's error says so by itself; of an eager task, whether Celery would retry it."""
        task = get_current_worker_task()
        if task is None or task.request.is_eager:
            return super().will_retry(error)
        return is_continued(error)

    def stopped(self, error: BaseException) -> bool:
        """Tell whether the worker, or who awaits the helper, has stopped it; ``sys.exit()`` in it fails its row."""
        task = get_current_worker_task()
        if task is None or task.request.is_eager or isinstance(error, Exception | CancelledError | GeneratorExit):
            return super().stopped(error)
        return ended_by_worker(error)

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
    """A task's body that calls a locked function, which must not put the body's message aside.

    The starts of its row are counted as those of a message are, except in a coroutine.
    """

    def __init__(self, call: Call) -> None:
        super().__init__(call)
        self.lock = cast(TaskLock, call.lock)
        self.earlier = Earlier(Message(get_current_worker_task()), call.row, comes_again=False)
        self.patience, self.wait = self.wait, 0.0
        if self.patience:
            self.action = ""

    def on_busy(self, refusal: Refusal) -> Lease | Skipped:
        """Acquire the lock also from a dead delivery of this message. Raises ``Duplicate`` if a living one holds it."""
        answer = self.earlier.take_over(self.lock, refusal)
        if isinstance(answer, Refusal) and self.patience:
            answer = self.lock.take(self.patience)
        return answer if isinstance(answer, Lease) else self.call.skip_or_raise(answer.error)

    def on_claimed(self) -> None:
        """Count the start of the row, if there is one. Raises ``CrashLoop``, which closes it as failed."""
        if self.call.row is not None:
            self.earlier.count_start(self.lock.name)

    def row_failed(self, claim: Claim) -> None:
        """Remember the row until the task has ended, and that its starts are counted anew."""
        super().row_failed(claim)
        self.earlier.row_failed = True

    def release(self, lease: Lease, error: BaseException | None) -> None:
        """Release ``lease``, and take the count back."""
        self.earlier.end(error, Ending(self.lock.give(lease)))

    async def aon_busy(self, refusal: Refusal) -> Lease | Skipped:
        """Do what ``on_busy`` does, for coroutines."""
        answer = await self.earlier.atake_over(self.lock, refusal)
        if isinstance(answer, Refusal) and self.patience:
            answer = await self.lock.atake(self.patience)
        return answer if isinstance(answer, Lease) else self.call.skip_or_raise(answer.error)


class DirectCaller(HelperCaller):
    """A direct call: there is no message to put aside, and the call must not wait for its own thread.

    ``request``: that of a call by ``apply()``.
    """

    def __init__(self, call: Call, request: Any = None) -> None:
        super().__init__(call)
        self.request = request
        self.rejects = request is not None and call.on_conflict == "reject"
        if self.rejects:
            self.action = "reject"

    def before(self) -> Skipped | None:
        """Refuse the call if this very thread holds its lock."""
        lock = self.call.lock
        if lock.held_here() is None:
            return None
        text = f"lock {lock.name!r} is held by this very thread, which called its task again"
        return self._refuse(TaskLockAcquireError(text, name=lock.name))

    def on_busy(self, refusal: Refusal) -> Lease | Skipped:
        """Skip the call, reject it, or raise."""
        return self._refuse(refusal.error)

    def skipped(self, result: Skipped) -> Skipped:
        """Return the result. Links expect that of a body, and are not called."""
        if self.request is not None:
            drop_links(self.request)
        return result

    def _refuse(self, error: TaskLockAcquireError) -> Skipped:
        if self.rejects:
            events.conflict(error, "reject")
            raise RejectedHere(str(error), requeue=False)
        return self.call.skip_or_raise(error)


class RejectedHere(Reject, Ignore):
    """The ``Reject`` of ``apply()``, with the state ``REJECTED``; ``autoretry_for=(Exception,)`` does not retry it."""


def once_call(
    task: Any,
    name: str,
    chosen: OnceOptions,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    invocation: Invocation,
    message: Message | None,
) -> Caller:
    """Return the caller of a task with the ``chosen`` options. ``message``: the message of a worker's call."""
    call = chosen.lock.call(name, row_of(task, args, kwargs), task.name)
    if message is not None:
        return TaskCaller(call, message, callers_park=True)
    if invocation == "call" and is_map(get_current_task()):
        skip_element(call)
    return DirectCaller(call, task.request if invocation == "eager" else None)


def skip_element(call: Call) -> None:
    """Make ``call`` one by a map: with most values of ``on_conflict`` it is skipped instead of put aside.

    A busy element must not prevent the others from running.
    """
    if call.on_conflict not in RAISING_IN_MAP:
        call.on_conflict = "skip"


def is_map(task: Any) -> bool:
    """Return whether ``task`` is one of Celery's tasks that call another one for each element."""
    return task is not None and task.name in ("celery.map", "celery.starmap")


class PermitTaskCaller(BodyCaller):
    """A worker that calls a task's body for a message. By default its ``on_conflict`` is ``retry``."""

    def __init__(self, call: Call, permit: PermitOfCall) -> None:
        call.on_conflict = permit.on_conflict or "retry"
        self.message = Message(get_current_worker_task())
        super().__init__(call, self.message.request)

    def run(self, body: Callable[[], Any]) -> Any:
        """Run ``body`` as any call does. Raises ``BodyExited`` if it leaves by ``sys.exit()``."""
        return super().run(lambda: run_body(self.message, body))

    def on_busy(self, refusal: Refusal) -> Lease | Skipped:
        """Put the message aside, skip it, or raise."""
        word = self.call.on_conflict
        # Never skip a message that was started before: its work has begun, and it may still hold a permit.
        if word in ("skip", "reject") and (self.message.is_continuation or self._has_own_permit()):
            word = "retry"
        seconds = min(FIRST_DELAY * 2.0 ** min(self.message.header.get("waits", 0), 16), LONGEST_DELAY)
        return resolve(self.call, self.message, refusal.error, word, seconds * random.uniform(1.0, 1.25))

    def hindered(self, error: Exception) -> NoReturn:
        """Put the message off."""
        put_off(self.message, error)

    def _has_own_permit(self) -> bool:
        """Return whether an earlier delivery of this message has a permit."""
        try:
            members = get_backend().permits.members(self.call.lock.name)
        except BackendUnavailable:
            return False
        return any(one.holder.task_id == self.message.id for one in members)
