"""Uniqueness on publication: while a message of a key is under way, ``delay()`` publishes no second one.

The second ``delay()`` returns the result of the first. The lock for that is separate from the lock of the run. The
publisher takes it for a short time and extends it once the message is published; the message carries a handle of its
token. So neither a rollback (``delay_on_commit`` takes nothing before the commit) nor a publisher that dies leaves it
behind for long, and a message that is lost in the broker blocks others only until the lock expires.
"""

from __future__ import annotations

import logging
import os
import sys
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from functools import partial
from typing import Any, TypeVar

from celery.exceptions import Ignore, Reject, Retry
from celery.states import SUCCESS
from celery.utils.time import maybe_iso8601

from django_tasklock.backends import get_backend
from django_tasklock.backends.contract.stores import LockStore
from django_tasklock.celery.exceptions import Duplicate, Parked
from django_tasklock.celery.fingerprint import shortened
from django_tasklock.celery.message import HEADER, Message, header_of, predecessor_request, token_of
from django_tasklock.celery.options import OnceOptions
from django_tasklock.celery.state import state_of
from django_tasklock.conf import UNTIL_RELEASED, get_settings, milliseconds, spans
from django_tasklock.exceptions import AlreadyPublished, BackendUnavailable, TaskLockAcquireError
from django_tasklock.locks import events
from django_tasklock.locks.heartbeat import heartbeat
from django_tasklock.locks.holder import alive, message_json
from django_tasklock.locks.info import busy_error
from django_tasklock.locks.lease import Lease, Refusal
from django_tasklock.locks.lock import TaskLock
from django_tasklock.names import MAX_LENGTH, of_tenant
from django_tasklock.types import AcquireRequest, Busy, monotonic

logger = logging.getLogger("django_tasklock")
T = TypeVar("T")

PREFIX = "unique:"
DEFAULT_UNIQUE_FOR = 3_600_000
"""Milliseconds after which a message without a ``unique_for`` and a timeout is given up: it may be lost."""
PUBLISHING_LEASE = 10_000  # milliseconds of the lock while publishing: a publisher that dies then leaves it for so long


def publish_unique(
    task: Any,
    name: str,
    chosen: OnceOptions,
    header: dict[str, Any],
    task_id: str,
    options: Mapping[str, Any],
    send: Callable[[], Any],
) -> Any:
    """Send the message unless one with the same key is under way. Return the ``AsyncResult`` of the one under way.

    Raises ``AlreadyPublished`` with ``on_duplicate="raise"``. If the store is down, raises ``BackendUnavailable``, or
    sends the message with the policy ``"run"``.
    """
    backend = get_backend()
    unique_name = _unique_name(task.name, name)
    lifetime = _lifetime(task, chosen, options)
    handle = os.urandom(16).hex()
    began = monotonic()
    request = AcquireRequest(
        unique_name, token_of(handle), PUBLISHING_LEASE, lifetime, message_json(task.name, task_id)
    )
    try:
        answer = backend.acquire(request)
    except BackendUnavailable as error:
        policy = chosen.lock.on_unavailable or get_settings().ON_UNAVAILABLE
        action = "run" if policy == "run" and error.down else "raise"
        events.unavailable(unique_name, error, action)
        if error.doubt:  # the lock may have been taken, for a message that is not sent or has no handle
            _release_later(backend, request)
        if action == "raise":
            raise
        return send()
    if isinstance(answer, Busy):
        first = "" if answer.record is None else answer.record.holder.task_id
        predecessor = predecessor_request(task.name, task_id, name) if first == task_id else None
        if predecessor is not None and (unique := header_of(predecessor).get("unique")):
            header["unique"] = unique
            result = send()
            state_of(predecessor).unique_passed_on = True
            return result
        # A member of a chain, a group or a chord is always sent: the others wait for the id it was given.
        if not first or "reply_to" in options:
            return send()
        busy = busy_error(unique_name, answer)
        events.conflict(busy, "unique")
        if chosen.on_duplicate == "raise":
            raise _already_published(busy, first)
        if dropped := [option for option in ("link", "link_error") if options.get(option)]:
            logger.warning(
                "%s: nothing is published, %s is under way, so what was given as %s is not called. Give it to that"
                " message, or publish with on_duplicate='raise' and decide",
                task.name, first, " and ".join(dropped),
            )  # fmt: skip
        return task.AsyncResult(first)
    header["unique"] = {"name": unique_name, "handle": handle, "until": chosen.unique, "span": lifetime}
    try:
        result = send()
    except BaseException:
        try:
            backend.release(unique_name, request.token)
        except BackendUnavailable:
            _release_later(backend, request)
        raise
    kept = _log_outage(unique_name, lambda: backend.extend(unique_name, request.token, lifetime, lifetime))
    # Sooner than that, the message has run and has released it.
    if kept is False and (took := monotonic() - began) * 1000 > PUBLISHING_LEASE:
        logger.warning(
            "%s: publishing %s took %.0f s, longer than its unique lock lasts: another one may be published meanwhile",
            task.name,
            task_id,
            took,
        )
    return result


def _already_published(error: TaskLockAcquireError, first: str) -> AlreadyPublished:
    known = {"holder": error.holder, "held_for": error.held_for, "time_left": error.time_left}
    raised = AlreadyPublished(f"{error}: nothing is published", name=error.name, **known)  # type: ignore[arg-type]
    raised.task_id = first
    return raised


def _unique_name(task: str, key: str) -> str:
    """Return the lock's name. It has the task's name, so that another task with the same key is not suppressed."""
    text = key if key.startswith(f"{task}:") else f"{task}:{key}"
    return PREFIX + shortened(text, MAX_LENGTH - len(PREFIX))


def _release_later(backend: LockStore, request: AcquireRequest) -> None:
    """Release the lock as soon as the store answers."""
    lease = Lease(backend, request.name, None, None)
    lease.token = request.token
    heartbeat.release_later(lease, PUBLISHING_LEASE)


def _lifetime(task: Any, chosen: OnceOptions, options: Mapping[str, Any]) -> int:
    """Return the milliseconds that the lock lives: ``unique_for`` after the message is due, or until it expires."""
    unique_for = (
        milliseconds(chosen.unique_for, "unique_for") if chosen.unique_for else _default_unique_for(task, chosen)
    )
    due = options.get("countdown") or seconds_until(options.get("eta")) or 0
    lifetime = unique_for + max(0, round(1000 * due))
    expires = options.get("expires", task.expires)
    if expires is not None:
        lifetime = min(lifetime, PUBLISHING_LEASE + max(0, round(1000 * (seconds_until(expires) or 0))))
    return lifetime


def _default_unique_for(task: Any, chosen: OnceOptions) -> int:
    timeout_ms, _ = spans(chosen.lock.timeout, chosen.lock.lease, task.name)
    return DEFAULT_UNIQUE_FOR if timeout_ms == UNTIL_RELEASED else timeout_ms


def seconds_until(when: Any) -> float | None:
    """Return the seconds until a time as Celery accepts it: a number, a datetime or its text. Naive means UTC."""
    if when is None or isinstance(when, int | float):
        return when
    moment = maybe_iso8601(when)
    assert isinstance(moment, datetime)
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() - time.time()


def _log_outage(name: str, verb: Callable[[], T]) -> T | None:
    try:
        return verb()
    except BackendUnavailable as error:
        events.unavailable(name, error, "leave it to expire")
        return None


def release_unique(header: Mapping[str, Any], task_id: str) -> None:
    """Release the lock of the message with this header and id, which has ended. Locks of other messages stay."""
    if unique := header.get("unique"):
        _log_outage(
            unique["name"], lambda: _call_with_token(unique, task_id, partial(get_backend().release, unique["name"]))
        )


def _call_with_token(unique: Mapping[str, Any], task_id: str, verb: Callable[[str], object]) -> None:
    """Call ``verb`` with the lock's token.

    If the publisher used another ``SECRET_KEY``, the token is read from the store.
    """
    if verb(token_of(unique["handle"])):
        return
    record = get_backend().get(unique["name"])
    if record is not None and record.token and record.holder.task_id == task_id:
        verb(record.token)


def on_postrun(sender: Any = None, retval: Any = None, state: str | None = None, **details: Any) -> None:
    """Release or keep the lock of a message that did not reach its run (``task_postrun``).

    Its ``before_start`` or ``__call__`` raised, or a time limit struck before the run could handle the lock.
    """
    request = sender.request
    unique = (request.__dict__.get(HEADER) or {}).get("unique")  # ``hide_header`` moved it there
    if not unique or request.is_eager or state_of(request).unique_settled:
        return
    error = retval if state != SUCCESS and isinstance(retval, BaseException) else sys.exc_info()[1]
    unique_lock = UniqueLock(Message(sender, request), unique)
    if not unique_lock.runs_elsewhere():
        unique_lock.__exit__(type(error), error, None)


class UniqueLock:
    """The worker's side: releases the lock when the body starts or when the message has ended, and keeps it otherwise.

    Enter it twice: if a time limit interrupts the first ``__exit__``, the second one completes it.
    """

    def __init__(self, message: Message, unique: dict[str, Any]) -> None:
        self.message = message
        self.unique = unique
        self._taken: tuple[TaskLock, Lease] | None = None

    def started(self, chosen: OnceOptions) -> None:
        """Release or take the lock, now that the body starts. ``chosen``: the options of the task."""
        if not self.unique:
            return
        if self.unique["until"] == "until_start":
            release_unique(self.message.header, self.message.id)
            self.unique = {}
            return
        name, terms = self.unique["name"], chosen.lock
        with of_tenant(""):  # the tenant is in the name already
            lock = TaskLock(name, timeout=terms.timeout, lease=terms.lease, on_unavailable="run")
        # Renewed from now on, so that a worker that dies blocks others only for a lease.
        taken = lock.take(0, supersedes=token_of(self.unique["handle"]))
        if isinstance(taken, Refusal) and taken.record is not None and taken.record.holder.task_id == self.message.id:
            # Of an earlier delivery, or of a publisher with another SECRET_KEY.
            taken = lock.take(0, supersedes=taken.record.token)
        self._taken = (lock, taken) if isinstance(taken, Lease) else None

    def runs_elsewhere(self) -> bool:
        """Return whether another delivery of the message is known to run; it then also holds the lock of the key."""
        try:
            record = get_backend().get(self.message.header["key"])
        except BackendUnavailable:  # the next request logs it
            return False
        if record is None or record.holder.task_id != self.message.id:
            return False
        return alive(record.holder) is not False

    def __enter__(self) -> UniqueLock:
        return self

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if self.unique and not isinstance(error, Duplicate):
            self._release_or_keep(error)
        state_of(self.message.request).unique_settled = True

    def _release_or_keep(self, error: BaseException | None) -> None:
        if self._continues(error):
            delay = seconds_until(getattr(error, "when", None)) or 0
            self._keep(self.unique["span"] / 1000 + max(0.0, delay))
        elif self._taken is not None:
            lock, lease = self._taken
            lock.give(lease)
        else:
            release_unique({"unique": self.unique}, self.message.id)
        self.unique = {}

    def _continues(self, error: BaseException | None) -> bool:
        if isinstance(error, Retry) and state_of(self.message.request).lock_changed:
            return False  # with other arguments it is another message
        if isinstance(error, Retry | Parked):
            return True
        if isinstance(error, Ignore):
            return state_of(self.message.request).unique_passed_on
        if isinstance(error, Reject):
            # Otherwise it was acknowledged and does not come back.
            return self.message.acks_late and bool(getattr(error, "requeue", False))
        # ``autoretry_for`` has already turned its exceptions into ``Retry``.
        return error is not None and not isinstance(error, Exception) and self.message.acks_late

    def _keep(self, seconds: float) -> None:
        name, task_id, lifetime = self.unique["name"], self.message.id, round(seconds * 1000)
        if self._taken is not None:
            _, lease = self._taken
            heartbeat.forget(lease)
            holder = message_json(self.message.task.name, task_id)
            request = AcquireRequest(name, token_of(self.unique["handle"]), lifetime, lifetime, holder, lease.token)
            if not (lease.without_lock or lease.lost):
                _log_outage(name, lambda: lease.backend.acquire(request))
        else:
            verb = get_backend().extend
            _log_outage(
                name,
                lambda: _call_with_token(self.unique, task_id, lambda token: verb(name, token, lifetime, lifetime)),
            )
