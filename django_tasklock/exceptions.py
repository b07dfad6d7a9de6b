"""Every error this package raises on purpose.

All of them can be pickled, so that a Celery worker can hand one to its parent
process without dying of it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from django_tasklock.types import Busy

__all__ = [
    "AlreadyPublished",
    "BackendUnavailable",
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
    """Root of all errors of this package. ``name`` is the lock it is about, if any."""

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

    ``holder`` (text, for people), ``held_for`` and ``time_left`` (seconds) say
    who has it; each is ``None`` when it could not be known.
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
    """A message like it is under way, and its task is ``unique``. ``task_id``: of that one."""

    task_id: str = ""


class LockLost(TaskLockError):
    """The lease is certainly gone: somebody else may hold the lock now."""


class ReleaseAsked(TaskLockError):
    """The lock is still held, but an operator asks for it: end at the next safe step. A guarded row is given back."""


class GuardRejected(TaskLockError):
    """The row was not in a state that could be claimed, or there is no such row.

    ``state`` is the state found there, ``None`` when there is no row.
    """

    def __init__(self, message: str, *, name: str | None = None, state: object = None) -> None:
        super().__init__(message, name=name)
        self.state = state


class StaleClaim(TaskLockError):
    """A write was refused because the row belongs to a newer claim, or was deleted. Never worth a retry.

    ``gone``: there is no such row any more. Then it is nobody else's, as far as can be known, and no alert.
    """

    def __init__(self, message: str, *, name: str | None = None, gone: bool = False) -> None:
        super().__init__(message, name=name)
        self.gone = gone


class BackendUnavailable(TaskLockError):
    """The store could not be asked; whether the lock is free is not known.

    ``doubt``: the request may have been carried out all the same, its answer lost. ``down``: nobody is served, as
    far as is known; False: the store refused this request or this client, and others may hold what it keeps, so
    that no policy runs anything without a lock, or unlimited.
    """

    busy: Busy | None = None
    """What the store had answered somebody who waits before it could not be asked any more."""

    def __init__(self, message: str, *, name: str | None = None, doubt: bool = True, down: bool = True) -> None:
        super().__init__(message, name=name)
        self.doubt = doubt
        self.down = down


class TransactionOpen(TaskLockError):
    """A lock or a claim was asked for inside ``atomic()``: others would not see it until commit."""


class CrashLoop(TaskLockError):
    """The workers of this message died one after the other; it is not started again."""


class RateLimitExceeded(TaskLockError):
    """The rate limit leaves no time for it that is near enough. ``retry_after`` is in seconds."""

    def __init__(self, message: str, *, name: str | None = None, retry_after: float | None = None) -> None:
        super().__init__(message, name=name)
        self.retry_after = retry_after
