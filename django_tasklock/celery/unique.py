"""Uniqueness on publication: while a message of a key is under way, ``delay()`` publishes no second one.

The second ``delay()`` returns the result of the first. The lock for that is separate from the lock of the run, and its
holder is the message. The publisher takes it for a short time and extends it once the message is published. So neither
a rollback (``delay_on_commit`` takes nothing before the commit) nor a publisher that dies leaves it behind for long,
and a message that is lost in the broker blocks others only until the lock expires. Whoever runs the message finds the
lock by the message's id.
"""

from __future__ import annotations

import logging
import os
import sys
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any, Self, TypeVar

from celery.exceptions import Ignore, Reject, Retry
from celery.states import READY_STATES, SUCCESS
from celery.utils.time import maybe_iso8601

from django_tasklock.backends import get_backend
from django_tasklock.celery.fingerprint import shortened
from django_tasklock.celery.message import HEADER, Message, header_of, predecessor_request
from django_tasklock.celery.options import OnceOptions
from django_tasklock.celery.state import Duplicate, Parked, state_of
from django_tasklock.conf import UNTIL_RELEASED, get_settings, milliseconds, spans
from django_tasklock.exceptions import AlreadyPublished, BackendUnavailable
from django_tasklock.host import Task
from django_tasklock.locks import events
from django_tasklock.locks.heartbeat import heartbeat
from django_tasklock.locks.holder import holder_json, message_json
from django_tasklock.locks.info import busy_error
from django_tasklock.locks.lease import Lease
from django_tasklock.names import MAX_LENGTH
from django_tasklock.types import AcquireRequest, Busy, Grant, Record, monotonic

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
    text = name if name.startswith(f"{task.name}:") else f"{task.name}:{name}"  # of this task, not of another
    lease = Lease(get_backend(), PREFIX + shortened(text, MAX_LENGTH - len(PREFIX)), None)
    lifetime = _lifetime(task, chosen, options)
    holder = message_json(task.name, task_id)
    began = monotonic()
    ask = AcquireRequest(lease.name, lease.token, PUBLISHING_LEASE, lifetime, holder)
    try:
        answer = lease.backend.acquire(ask)
        if isinstance(answer, Busy) and (ended := _ended_token(task, answer.record)):
            answer = lease.backend.acquire(ask._replace(supersedes=ended))
    except BackendUnavailable as error:
        policy = chosen.lock.on_unavailable or get_settings().ON_UNAVAILABLE
        action = "run" if policy == "run" and error.down else "raise"
        events.unavailable(lease.name, error, action)
        if error.doubt:  # the lock may have been taken, for a message that is not sent or does not know of it
            heartbeat.release_later(lease, PUBLISHING_LEASE)
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
        busy = busy_error(lease.name, answer)
        events.conflict(busy, "unique")
        if chosen.on_duplicate == "raise":
            known = {"holder": busy.holder, "held_for": busy.held_for, "time_left": busy.time_left}
            raised = AlreadyPublished(f"{busy}: nothing is published", name=lease.name, **known)  # type: ignore[arg-type]
            raised.task_id = first
            raise raised
        if dropped := [option for option in ("link", "link_error") if options.get(option)]:
            logger.warning(
                "%s: nothing is published, %s is under way, so what was given as %s is not called. Give it to that"
                " message, or publish with on_duplicate='raise' and decide",
                task.name, first, " and ".join(dropped),
            )  # fmt: skip
        return task.AsyncResult(first)
    header["unique"] = {"name": lease.name, "until": chosen.unique, "span": lifetime}
    try:
        result = send()
    except BaseException:
        _log_outage(lease.name, lambda: lease.backend.release(lease.name, lease.token))
        raise
    kept = _log_outage(lease.name, lambda: lease.backend.extend(lease.name, lease.token, lifetime, lifetime))
    # Sooner than that, a worker has taken the lock over, or released it.
    if kept is False and (took := monotonic() - began) * 1000 > PUBLISHING_LEASE:
        logger.warning(
            "%s: publishing %s took %.0f s, longer than its unique lock lasts: another one may be published meanwhile",
            task.name,
            task_id,
            took,
        )
    return result


def _lifetime(task: Any, chosen: OnceOptions, options: Mapping[str, Any]) -> int:
    """Return the milliseconds that the lock lives: ``unique_for`` after the message is due, or until it expires."""
    if chosen.unique_for:
        unique_for = milliseconds(chosen.unique_for, "unique_for")
    else:
        timeout_ms, _ = spans(chosen.lock.timeout, chosen.lock.lease, task.name)
        unique_for = DEFAULT_UNIQUE_FOR if timeout_ms == UNTIL_RELEASED else timeout_ms
    due = options.get("countdown") or seconds_until(options.get("eta")) or 0
    lifetime = unique_for + max(0, round(1000 * due))
    expires = seconds_until(options.get("expires", task.expires))
    return lifetime if expires is None else min(lifetime, PUBLISHING_LEASE + max(0, round(1000 * expires)))


def seconds_until(when: Any) -> float | None:
    """Return the seconds until a time as Celery accepts it: a number, a datetime or its text. Naive means UTC."""
    if when is None or isinstance(when, int | float):
        return when
    moment = maybe_iso8601(when)
    assert isinstance(moment, datetime)
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() - time.time()


def _ended_token(task: Any, record: Record | None) -> str:
    """Return the token of a lock whose message has ended since it took it, by its result; otherwise an empty text.

    Nobody has released it: a worker without this package dropped the message, or the process was killed that should.
    """
    if record is None or not record.holder.is_message:
        return ""
    taken = time.time() - (record.now - record.at - 1) / 1000  # whole milliseconds
    try:
        meta = task.backend.get_task_meta(record.holder.task_id, cache=False)
        left = seconds_until(meta.get("date_done"))
    except Exception as error:  # no result backend, it is down, or it has no result: the lock decides
        logger.debug("%s: no result could be read: %s", record.holder, error)
        return ""
    # An older result is that of an earlier message with the same id.
    if meta["status"] not in READY_STATES or left is None or time.time() + left <= taken:
        return ""
    logger.warning("lock %r: %s has ended (%s), its lock is free", record.name, record.holder, meta["status"])
    return record.token


def _log_outage(name: str, verb: Callable[[], T]) -> T | None:
    try:
        return verb()
    except BackendUnavailable as error:
        events.unavailable(name, error, "leave it to expire")
        return None


def _token(name: str, task_id: str, on_its_way: bool = False) -> str:
    """Return the token of the lock, if its holder is this message; otherwise an empty text."""
    record = get_backend().get(name)
    if record is None or record.holder.task_id != task_id or (on_its_way and not record.holder.is_message):
        return ""
    return record.token


def release_unique(header: Mapping[str, Any], task_id: str, *, on_its_way: bool = False) -> None:
    """Release the lock of the message with this header and id, which has ended. Locks of other messages stay.

    ``on_its_way``: only if no process runs it.
    """

    def release() -> None:
        if token := _token(unique["name"], task_id, on_its_way):
            get_backend().release(unique["name"], token)

    unique = header.get("unique") or {}
    if unique:
        _log_outage(unique["name"], release)


def on_postrun(sender: Any = None, retval: Any = None, state: str | None = None, **details: Any) -> None:
    """Release or keep the lock of a message that did not reach its run: its ``before_start`` raised (``task_postrun``).

    A process that holds the lock runs another delivery of it, or has lost it to a time limit, and lets it expire.
    """
    request = sender.request
    unique = (request.__dict__.get(HEADER) or {}).get("unique")  # ``hide_header`` moved it there
    if not unique or request.is_eager or state_of(request).unique_settled:
        return
    record = _log_outage(unique["name"], lambda: get_backend().get(unique["name"]))
    if record is not None and record.holder.is_message:
        error = retval if state != SUCCESS and isinstance(retval, BaseException) else sys.exc_info()[1]
        UniqueLock(Message(sender, request)).__exit__(type(error), error, None)


class UniqueLock:
    """The worker's side: releases the lock when the body starts or when the message has ended, and keeps it otherwise.

    While the body runs, this process holds the lock and renews it: a worker that dies blocks others only for a lease.
    """

    def __init__(self, message: Message) -> None:
        self.message = message
        self.unique: dict[str, Any] = message.header.get("unique") or {}
        self._lease: Lease | None = None

    def started(self, chosen: OnceOptions) -> None:
        """Release the lock, or take it from the message, now that the body starts. ``chosen``: the task's options."""
        if not self.unique:
            return
        if self.unique["until"] == "until_start":
            release_unique(self.message.header, self.message.id)
            self.unique = {}
            return
        hold, lease_ms = spans(chosen.lock.timeout, chosen.lock.lease, self.message.task.name)
        lease = Lease(get_backend(), self.unique["name"], lease_ms)
        holder = holder_json(Task(self.message.task.name, self.message.id, self.message.try_number))
        sent = monotonic()
        answer = self._hand_over(lease.token, lease_ms or hold, hold, holder)
        if isinstance(answer, Grant):
            lease.granted(answer, sent, hold)
            self._lease = lease
            if lease_ms is not None:
                heartbeat.follow(lease)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if self._lease is not None:
            heartbeat.forget(self._lease)
        if self.unique and not isinstance(error, Duplicate):
            if self._continues(error):
                lifetime = self.unique["span"] + round(
                    1000 * max(0.0, seconds_until(getattr(error, "when", None)) or 0)
                )
                holder = message_json(self.message.task.name, self.message.id)
                self._hand_over(os.urandom(16).hex(), lifetime, lifetime, holder)
            elif (lease := self._lease) is not None:
                _log_outage(lease.name, lambda: lease.backend.release(lease.name, lease.token))
            else:
                release_unique({"unique": self.unique}, self.message.id)
        state_of(self.message.request).unique_settled = True

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

    def _hand_over(self, token: str, ttl_ms: int, hold_ms: int, holder: str) -> Grant | Busy | None:
        """Pass the message's lock on to another holder. Return the store's answer; ``None``: it is down."""
        name = self.unique["name"]

        def acquire() -> Grant | Busy:
            before = _token(name, self.message.id) if self._lease is None else self._lease.token
            return get_backend().acquire(AcquireRequest(name, token, ttl_ms, hold_ms, holder, before))

        return _log_outage(name, acquire)
