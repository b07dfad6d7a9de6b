"""The options of the locks of a function or a task, checked once, at decoration."""

from __future__ import annotations

from dataclasses import dataclass

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
from django_tasklock.locks.lock import TaskLock
from django_tasklock.locks.parameters import POLICIES
from django_tasklock.names import Names, other_tenant


@dataclass(frozen=True, slots=True, kw_only=True)
class LockOptions:
    """The options of the locks of one function or task. Each call fills the defaults from the settings.

    ``label``: the name template, for messages. Raises ``TaskLockError`` for options that cannot work.
    """

    label: str
    timeout: Timeout = DEFAULT
    lease: LeaseTime = DEFAULT
    on_conflict: OnConflict | None = None
    blocking_timeout: Duration | None = None
    on_unavailable: OnUnavailable | None = None
    queue_limit: int | None = None
    release_connections: bool | None = None
    reentrant: bool = False
    decorator: str = ""
    """The decorator that they were passed to; empty for a task, whose label says where they stand."""

    def __post_init__(self) -> None:
        spans(self.timeout, self.lease, self.label)
        check_conflict(self.where, self.on_conflict, self.blocking_timeout, self.queue_limit)
        check_release(self.where, self.release_connections)
        check_policy(self.where, self.on_unavailable)

    @property
    def where(self) -> str:
        """Where they stand in the code, for messages."""
        return whose(self.decorator, self.label) if self.decorator else self.label

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
        conflict = self.on_conflict or get_settings().ON_CONFLICT
        if isinstance(name, Names):
            self.check_several(conflict)
        lock = TaskLock(
            name,
            timeout=self.timeout,
            lease=self.lease,
            reentrant=self.reentrant,
            on_unavailable=self.on_unavailable,
            kind=kind or self.label,
            row="" if row is None else str(row),
        )
        if row is not None and (tenant := other_tenant(lock.name)):
            raise TaskLockError(
                f"{self.where}: {row} of tenant {tenant!r} cannot be claimed by tenant {get_settings().tenant()!r}: the"
                " worker runs the message as another tenant than its publisher's",
                name=lock.name,
            )
        wait = 0.0
        if conflict == "wait":  # by default for the timeout of the holder
            given = self.blocking_timeout
            wait = lock.timeout if given is None else milliseconds(given, "blocking_timeout", name=lock.name) / 1000
        return Call(
            lock,
            conflict,
            row,
            wait=wait,
            queue_limit=self.queue_limit,
            release_connections=self.release_connections,
        )


def whose(decorator: str, label: str) -> str:
    """Return how messages name a decorator and its label."""
    return f"@{decorator}({label!r})"


def check_conflict(
    where: str, on_conflict: str | None, blocking_timeout: Duration | None, queue_limit: int | None
) -> None:
    """Raise ``TaskLockError`` for options of a conflict that cannot work. ``where``: where they stand in the code."""
    if on_conflict is not None and on_conflict not in WORDS:
        known = ", ".join(map(repr, WORDS))
        raise TaskLockError(f"{where}: on_conflict must be one of {known}, not {on_conflict!r}")
    if blocking_timeout is not None:
        milliseconds(blocking_timeout, f"{where}: blocking_timeout")
        if on_conflict != "wait":
            raise TaskLockError(f"{where}: blocking_timeout goes with on_conflict='wait', not {on_conflict!r}")
    if queue_limit is not None:
        if on_conflict != "queue":
            raise TaskLockError(f"{where}: queue_limit goes with on_conflict='queue', not {on_conflict!r}")
        if type(queue_limit) is not int or queue_limit < 1:
            raise TaskLockError(f"{where}: queue_limit must be a number of messages, 1 or more, not {queue_limit!r}")


def check_release(where: str, release_connections: object) -> None:
    """Raise ``TaskLockError`` for what ``release_connections`` cannot be."""
    if release_connections is not None and not isinstance(release_connections, bool):
        raise TaskLockError(f"{where}: release_connections must be True, False or None, not {release_connections!r}")


def check_policy(where: str, on_unavailable: object) -> None:
    """Raise ``TaskLockError`` for what ``on_unavailable`` cannot be."""
    if on_unavailable is not None and on_unavailable not in POLICIES:
        raise TaskLockError(f"{where}: on_unavailable must be 'run', 'raise' or 'skip', not {on_unavailable!r}")
