"""The conflict of a message whose lock is busy: ``on_conflict`` for the body of a task."""

from __future__ import annotations

from django_tasklock.celery.delivery.defer import reject
from django_tasklock.celery.delivery.history import History
from django_tasklock.celery.delivery.line import Line
from django_tasklock.decorators.call import Skipped, skip, skip_or_raise
from django_tasklock.decorators.options import CallOptions
from django_tasklock.exceptions import BackendUnavailable
from django_tasklock.locks import events


def resolve_conflict(options: CallOptions, history: History, line: Line) -> Skipped:
    """Do what the options say, after what waits has waited. Return the result of the call if it is skipped.

    Else it leaves by raising: ``TaskLockAcquireError``, ``Duplicate`` if another delivery has done the work, or what
    tells Celery that the message was put off, parked or rejected.
    """
    lock, word, message = options.lock, options.on_conflict, history.message
    error = lock.conflict_error()
    history.discard_if_done()
    if isinstance(error.__cause__, BackendUnavailable) and word not in ("raise", "wait"):
        return skip(lock, error)  # that is what on_unavailable="skip" says
    if word in ("skip", "reject") and message.retries:  # its work has begun
        word = "retry"
    if word == "reject":
        if message.in_canvas:  # a member without a result would leave the others waiting
            return skip(lock, error)
        events.conflict(error, "reject")
        reject(error, message)
    if word == "retry":
        events.conflict(error, "retry")
        history.put_off()
    if line.lines_up:
        events.conflict(error, word)
        return line.park()
    return skip_or_raise(options)
