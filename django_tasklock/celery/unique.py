"""Uniqueness at publish time: while one message of a key is under way, another ``delay()`` gives its result.

A lock of its own, ``unique:<key>``, taken by the publisher for a short time, kept for long once
the message is published, and carried in it. So neither a rollback (with ``delay_on_commit``
nothing is taken before the commit) nor a publisher that dies leaves it behind, and what is
lost in the broker frees it when its time is over.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any

from celery.exceptions import Reject, Retry
from celery.utils.time import maybe_iso8601

from django_tasklock import running
from django_tasklock.backends import get_backend
from django_tasklock.celery.busy import Aside
from django_tasklock.celery.message import Message
from django_tasklock.celery.myself import Duplicate
from django_tasklock.conf import get_settings, milliseconds
from django_tasklock.exceptions import BackendUnavailable
from django_tasklock.handover import keep, resume
from django_tasklock.holders import Task, me
from django_tasklock.info import busy_error
from django_tasklock.locks import TaskLock
from django_tasklock.names import clean
from django_tasklock.reports import told_conflict, told_unavailable
from django_tasklock.types import Ask, Busy

__all__ = ["Pending", "free", "publish", "seconds_until"]

logger = logging.getLogger("django_tasklock")

PREFIX = "unique:"
PROVISIONAL = 10_000  # milliseconds for publishing: what a publisher that dies then leaves behind


def publish(
    task: Any,
    name: str,
    terms: Mapping[str, Any],
    header: dict[str, Any],
    task_id: str,
    options: Mapping[str, Any],
    send: Callable[[], Any],
) -> Any:
    """``send()`` unless such a message is under way; the ``AsyncResult`` of the one that is, either way.

    Raises ``BackendUnavailable`` with the store down, unless the policy is ``"run"``: then it is sent.
    """
    backend = get_backend()
    own = clean(PREFIX + name)
    span = _span(terms, options)
    ask = Ask(own, os.urandom(16).hex(), PROVISIONAL, span, me(Task(task.name, task_id)))
    try:
        answer = backend.acquire(ask)
    except BackendUnavailable as error:
        action = "run" if (terms["on_unavailable"] or get_settings().ON_UNAVAILABLE) == "run" else "raise"
        told_unavailable(own, error, action)
        if action == "raise":
            raise
        return send()
    if isinstance(answer, Busy) and answer.record is not None:
        told_conflict(busy_error(own, answer), "unique")
        return task.AsyncResult(answer.record.holder.task_id)
    header["unique"] = {"name": own, "token": ask.token, "until": terms["unique"], "span": span}
    try:
        result = send()
    except BaseException:
        _tell(own, lambda: backend.release(own, ask.token))
        raise
    _tell(own, lambda: backend.extend(own, ask.token, span, span))
    return result


def _span(terms: Mapping[str, Any], options: Mapping[str, Any]) -> int:
    """Milliseconds the lock lives in the queue: ``unique_for`` after the message is due, or until it expires."""
    patience = milliseconds(terms["unique_for"] or terms["timeout"] or get_settings().TIMEOUT, "unique_for")
    span = patience + round(1000 * (options.get("countdown") or seconds_until(options.get("eta")) or 0))
    expires = options.get("expires")
    if expires is not None:
        span = min(span, PROVISIONAL + max(0, round(1000 * (seconds_until(expires) or 0))))
    return span


def seconds_until(when: Any) -> float | None:
    """Seconds until what Celery takes for a time: a number of seconds, a datetime or its text."""
    if when is None or isinstance(when, int | float):
        return when
    moment = maybe_iso8601(when)
    assert isinstance(moment, datetime)
    return (moment - datetime.now(UTC if moment.tzinfo else None)).total_seconds()


def _tell(name: str, verb: Callable[[], object]) -> None:
    try:
        verb()
    except BackendUnavailable as error:
        told_unavailable(name, error, "leave it to expire")


def free(header: Mapping[str, Any]) -> None:
    """Let another one be published: the message with this header is over. Only its own token frees it."""
    if ours := header.get("unique"):
        _tell(ours["name"], lambda: get_backend().release(ours["name"], ours["token"]))


class Pending:
    """The worker's side: frees the lock when the body starts or when the message is over, keeps it otherwise."""

    def __init__(self, message: Message | None, timeout: Any, lease: Any) -> None:
        self.message = message
        self.ours: dict[str, Any] = {} if message is None else message.header.get("unique") or {}
        self._terms = {"timeout": timeout, "lease": lease}
        self._lock: TaskLock | None = None

    def started(self) -> None:
        """The body begins."""
        if not self.ours or self.message is None:
            return
        if self.ours["until"] == "until_start":
            free(self.message.header)
            self.ours = {}
            return
        lock = TaskLock(self.ours["name"], on_unavailable="run", **self._terms)
        resume(lock, self.ours["token"])
        if lock.acquire(blocking=False):  # renewed from here on, so that a worker that dies does not block for long
            self._lock = lock

    def __enter__(self) -> Pending:
        return self

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if not self.ours or isinstance(error, Duplicate):
            return
        if self._comes_back(error):
            delay = seconds_until(getattr(error, "when", None)) or 0
            self._keep(self.ours["span"] / 1000 + max(0.0, delay))
        elif self._lock is not None:
            self._lock.release()
        else:
            free({"unique": self.ours})

    def _comes_back(self, error: BaseException | None) -> bool:
        if isinstance(error, Retry | Aside):
            return True
        if isinstance(error, Reject):
            return bool(getattr(error, "requeue", False))
        stopped = error is not None and not isinstance(error, Exception)
        assert self.message is not None
        return (stopped and self.message.late) or (isinstance(error, Exception) and running.will_retry(error))

    def _keep(self, seconds: float) -> None:
        if self._lock is not None:
            keep(self._lock, seconds)
        else:
            span = round(seconds * 1000)
            _tell(self.ours["name"], lambda: get_backend().extend(self.ours["name"], self.ours["token"], span, span))
