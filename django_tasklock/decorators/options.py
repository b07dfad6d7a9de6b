"""The options of the locks, or the limiters, of a function or a task, checked once, at decoration."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from django_tasklock.conf import (
    DEFAULT,
    WORDS,
    Duration,
    LeaseTime,
    OnConflict,
    OnUnavailable,
    Timeout,
    get_settings,
    milliseconds,
    spans,
)
from django_tasklock.decorators.call import Call
from django_tasklock.decorators.rows import GuardedRow
from django_tasklock.exceptions import TaskLockError
from django_tasklock.locks.lock import Acquirable, TaskLock
from django_tasklock.locks.parameters import POLICIES
from django_tasklock.locks.semaphore import ConcurrencyLimiter, check_limit
from django_tasklock.names import Names, other_tenant, present_tenant

OnLimit = Literal["skip", "raise", "wait", "retry", "reject"]
"""What a call does when no permit is free. The last two postpone a message: only under Celery."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LockOptions:
    """The options of the locks of one function or task. Each call fills the defaults from the settings.

    ``label``: the name template, for messages. Raises ``TaskLockError`` for options that cannot work.
    """

    label: str
    limit: int | None = None
    """The limit of a concurrency limiter; ``None``: a lock."""
    timeout: Timeout = DEFAULT
    lease: LeaseTime = DEFAULT
    on_conflict: OnConflict | OnLimit | None = None
    blocking_timeout: Duration | None = None
    on_unavailable: OnUnavailable | None = None
    queue_limit: int | None = None
    release_connections: bool | None = None
    reentrant: bool = False
    decorator: str = ""
    """The decorator that they were passed to; empty for a task, whose label says where they stand."""

    def __post_init__(self) -> None:
        if self.limit is not None:
            check_limit(self.limit)
        spans(self.timeout, self.lease, self.label)
        self._check_conflict()
        if self.release_connections is not None and not isinstance(self.release_connections, bool):
            raise TaskLockError(
                f"{self.where}: release_connections must be True, False or None, not {self.release_connections!r}"
            )
        if self.on_unavailable is not None and self.on_unavailable not in POLICIES:
            raise TaskLockError(
                f"{self.where}: on_unavailable must be 'run', 'raise' or 'skip', not {self.on_unavailable!r}"
            )

    def _check_conflict(self) -> None:
        word, words = self.on_conflict, WORDS
        if self.limit is not None:
            words = get_args(OnLimit)
            if word in ("queue", "coalesce"):
                raise TaskLockError(
                    f"{self.where}: on_conflict={word!r} is for locks: a message is parked behind one holder, and"
                    f" a limiter has {self.limit}; use 'retry', which also gives the worker back, or 'wait', which"
                    " keeps the order"
                )
        if word is not None and word not in words:
            raise TaskLockError(f"{self.where}: on_conflict must be one of {', '.join(map(repr, words))}, not {word!r}")
        if self.blocking_timeout is not None:
            milliseconds(self.blocking_timeout, f"{self.where}: blocking_timeout")
            if word != "wait" and not (self.limit is not None and word is None):
                raise TaskLockError(f"{self.where}: blocking_timeout goes with on_conflict='wait', not {word!r}")
        if self.queue_limit is not None:
            if word != "queue":
                raise TaskLockError(f"{self.where}: queue_limit goes with on_conflict='queue', not {word!r}")
            if type(self.queue_limit) is not int or self.queue_limit < 1:
                raise TaskLockError(
                    f"{self.where}: queue_limit must be a number of messages, 1 or more, not {self.queue_limit!r}"
                )

    @property
    def where(self) -> str:
        """Where they stand in the code, for messages."""
        return f"@{self.decorator}({self.label!r})" if self.decorator else self.label

    def check_several(self, conflict: str | None = None) -> None:
        """Raise ``TaskLockError`` for options that a lock of several names cannot have."""
        word = conflict or self.on_conflict
        if word in ("queue", "coalesce"):
            raise TaskLockError(
                f"{self.where}: on_conflict={word!r} keeps messages in the order of one name, and this lock has"
                " several; take 'skip', 'raise', 'wait', 'retry' or 'reject', or lock one name"
            )

    def call(self, name: str, row: GuardedRow | None = None, kind: str = "") -> Call:
        """Return one call by the current settings, with a new lock of this name, counted as ``kind`` or the label."""
        lock = self._lock(name, row, kind or self.label)
        conflict = self.on_conflict or ("wait" if self.limit is not None else get_settings().ON_CONFLICT)
        if isinstance(name, Names):
            self.check_several(conflict)
        if row is not None and (tenant := other_tenant(lock.name)):
            raise TaskLockError(
                f"{self.where}: {row} of tenant {tenant!r} cannot be claimed by tenant {present_tenant()!r}: the"
                " worker runs the message as another tenant than its publisher's",
                name=lock.name,
            )
        given = self.blocking_timeout  # by default the timeout of the holder
        return Call(
            lock,
            conflict,
            row,
            wait=lock.timeout if given is None else milliseconds(given, "blocking_timeout") / 1000,
            queue_limit=self.queue_limit,
            release_connections=self.release_connections,
            busy="already_processing" if self.limit is None else "limit_reached",
        )

    def _lock(self, name: str, row: GuardedRow | None, kind: str) -> Acquirable:
        if self.limit is not None:
            return ConcurrencyLimiter(
                name,
                self.limit,
                timeout=self.timeout,
                lease=self.lease,
                on_unavailable=self.on_unavailable,
                kind=kind,
            )
        return TaskLock(
            name,
            timeout=self.timeout,
            lease=self.lease,
            reentrant=self.reentrant,
            on_unavailable=self.on_unavailable,
            kind=kind,
            row="" if row is None else str(row),
        )
