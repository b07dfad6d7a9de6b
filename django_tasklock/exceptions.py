"""The errors of this package.

All of them can be pickled, because a Celery worker process sends them to its parent.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from django_tasklock.types import Busy

__all__ = [
    "AlreadyPublished",
    "BackendUnavailable",
    "BodyExited",
    "CrashLoop",
    "GuardRejected",
    "LockLost",
    "RateLimitExceeded",
    "ReleaseAsked",
    "StaleClaim",
    "TaskLockAcquireError",
    "TaskLockError",
    "TransactionOpen",
]


class TaskLockError(Exception):
    """Base class of all errors of this package. ``name``: the name of the lock or limiter, if any."""

    def __init__(self, message: str, *, name: str | None = None) -> None:
        super().__init__(message)
        self.name = name

    def __reduce__(self) -> tuple[object, ...]:
        return _rebuild, (type(self), self.args, self.__dict__)


def _rebuild(kind: type[TaskLockError], args: tuple[str], state: dict[str, object]) -> TaskLockError:
    error = kind.__new__(kind)
    error.args = args
    error.__dict__.update(state)
    return error


class TaskLockAcquireError(TaskLockError):
    """The lock is busy, or was not free in time.

    ``holder`` (text, for people), ``held_for`` and ``time_left`` (seconds) describe the holder; each is ``None`` if it
    is not known.
    """

    def __init__(
        self,
        message: str,
        *,
        name: str | None = None,
        holder: str | None = None,
        held_for: float | None = None,
        time_left: float | None = None,
    ) -> None:
        super().__init__(message, name=name)
        self.holder = holder
        self.held_for = held_for
        self.time_left = time_left


class AlreadyPublished(TaskLockAcquireError):
    """A message of a ``unique`` task is under way already. ``task_id``: the id of that message."""

    task_id: str = ""


class LockLost(TaskLockError):
    """The lease is certainly gone: another holder may have the lock now."""


class ReleaseAsked(TaskLockError):
    """The lock is still held, but an operator has requested its release: end at the next safe step.

    A guarded row becomes claimable again.
    """


class GuardRejected(TaskLockError):
    """The row was not in a state that could be claimed, there is no such row, or another transaction has it locked.

    ``state``: the state of the row, ``None`` if there is no row or it is locked. ``reason``: as in the result of a
    skipped call, ``"invalid_state"``, ``"missing"`` or ``"row_locked"``.
    """

    def __init__(
        self, message: str, *, name: str | None = None, state: object = None, reason: str = "invalid_state"
    ) -> None:
        super().__init__(message, name=name)
        self.state = state
        self.reason = reason


class StaleClaim(TaskLockError):
    """A write was refused because the row belongs to a newer claim, or is not found. Never worth a retry.

    ``gone``: this process has deleted the row. That is no sign of a second worker, so it raises no alert.
    """

    def __init__(self, message: str, *, name: str | None = None, gone: bool = False) -> None:
        super().__init__(message, name=name)
        self.gone = gone


class BackendUnavailable(TaskLockError):
    """The store is unavailable, so it is not known whether the lock is free.

    ``doubt``: the store may have carried out the request although its answer was lost. ``down``: as far as is known,
    the store serves no client. False: it refused this request or this client, while others may hold its locks. Then no
    policy runs a body without a lock, or a call without a limit.
    """

    busy: Busy | None = None
    """The store's last answer to a waiter, before it became unavailable."""

    def __init__(self, message: str, *, name: str | None = None, doubt: bool = True, down: bool = True) -> None:
        super().__init__(message, name=name)
        self.doubt = doubt
        self.down = down


class TransactionOpen(TaskLockError):
    """A lock or a claim was requested inside of ``atomic()``: others would not see it until the commit."""


class BodyExited(TaskLockError):
    """A task's body has called ``sys.exit()``, or has raised another exception that is no ``Exception``.

    Celery would take that for a lost worker, and start the message again without end.
    """


class CrashLoop(TaskLockError):
    """Several workers in a row have died while they ran this message, so it is not started again."""


class RateLimitExceeded(TaskLockError, TimeoutError):
    """The rate limit does not allow the call in time. ``retry_after``: seconds until it would."""

    def __init__(self, message: str, *, name: str | None = None, retry_after: float | None = None) -> None:
        super().__init__(message, name=name)
        self.retry_after = retry_after
