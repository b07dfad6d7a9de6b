"""The immutable values that are passed between the layers.

Durations are whole milliseconds in the storage layer, and seconds in values for people.
"""

from __future__ import annotations

import enum
import hashlib
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Any, NamedTuple

from django_tasklock.texts import printable

__all__ = [
    "LATEST",
    "AcquireRequest",
    "Busy",
    "Condition",
    "Grant",
    "Holder",
    "InstanceState",
    "LimiterInfo",
    "LockInfo",
    "Record",
    "Released",
    "Renewal",
    "RenewalResult",
    "fingerprint",
    "monotonic",
]

monotonic: Callable[[], float] = time.monotonic
"""Seconds on a clock that never jumps and, unlike ``time.monotonic``, counts suspended time where the system can."""
if hasattr(time, "CLOCK_BOOTTIME"):
    monotonic = partial(time.clock_gettime, time.CLOCK_BOOTTIME)  # in C: a call reads it several times


LATEST = 253_370_764_800_000
"""The beginning of the year 9999, in milliseconds since 1970: a ``datetime`` can show nothing much later."""


def fingerprint(token: str) -> str:
    """Return a short hash of ``token`` for people: enough to compare, useless for a release."""
    return hashlib.sha256(token.encode()).hexdigest()[:12] if token else ""


@dataclass(frozen=True, slots=True)
class Holder:
    """The holder of a lock, for people. It proves nothing."""

    host: str = ""
    pid: int = 0
    boot: str = ""
    task: str = ""
    task_id: str = ""
    retries: int = 0
    """The number of retries of the task; redeliveries do not count."""
    proc: str = ""
    """Machine and start time of the process, for ``locks.holder.alive``. Empty where they are not known."""
    row: str = ""
    """The guarded row that is being processed, ``videos.video:42``; empty where there is none."""
    limit: int = 0
    """The limit of a permit's holder; 0: not known, or a lock."""
    kind: str = ""
    """The kind that it is counted as, ``video:{id}``; empty: a lock without a kind, or not counted."""
    unreadable: bool = False
    """Whether the stored value begins like ours and cannot be parsed."""

    @property
    def is_message(self) -> bool:
        """Whether it is a message on its way, no process: that of a ``unique`` lock while its task does not run."""
        return bool(self.task_id and not self.pid)

    def __str__(self) -> str:
        if self.is_message:
            return f"message {printable(self.task)}[{printable(self.task_id)}]"
        where = f"{printable(self.host)}:{self.pid}" if self.host else "unreadable" if self.unreadable else "unknown"
        return f"{where} ({printable(self.task)}[{printable(self.task_id)}])" if self.task else where


class AcquireRequest(NamedTuple):
    """A request to a store to grant a lock.

    ``ttl_ms``: how long the key lives without a renewal. ``hold_ms``: the timeout. ``holder``: a JSON object.
    """

    name: str
    token: str
    ttl_ms: int
    hold_ms: int
    holder: str = "{}"
    supersedes: str = ""
    """The token of an earlier lease that the grant replaces, once. Not for a waiter."""
    limit: int = 1
    """The number of holders at once: more than one only for a permit of a concurrency limiter."""
    whole: bool = False
    """Whether the lease is not renewed, so that a waiter to which the lock is passed on has it for all of its time."""

    def handover_ttl(self, most: int) -> int:
        """Return the TTL in ms of a lock that is passed on to this waiter: a *short lease* of ``most``, if renewed."""
        return self.ttl_ms if self.whole else min(self.ttl_ms, most)


class Grant(NamedTuple):
    """The lock is granted for ``ttl`` milliseconds.

    A ``ttl`` below that of the request is a *short lease* of a lock that was passed on; the first renewal extends it.
    """

    fence: int
    ttl: int
    expired: int = 0
    """How many earlier leases were found to have ended without a release; 0 where the store cannot tell."""


class Busy(NamedTuple):
    """Another holder has the lock. ``record``: ``None`` if it could not be read."""

    record: Record | None
    remaining: int | None = None
    """Milliseconds until the key expires; ``None``: it does not expire."""
    name: str = ""
    """The busy one of several names."""
    expired: int = 0
    """As of a ``Grant``: that of a dead holder has just passed to an earlier waiter."""


class Renewal(NamedTuple):
    """One lock of a batch to renew for ``ttl`` milliseconds from now, if ``token`` still holds it."""

    name: str
    token: str
    ttl: int


class RenewalResult(enum.Enum):
    """The outcome of a renewal. False only for ``LOST``."""

    RENEWED = "renewed"
    ASKED = "asked"
    """Renewed, and the release of the lock is requested."""
    LOST = "lost"
    UNKNOWN = "unknown"
    """The part of the store that has this lock did not answer, though others did. It is to be asked again."""

    def __bool__(self) -> bool:
        return self is not RenewalResult.LOST


class Released(enum.Enum):
    """The outcome of a release. True only for ``RELEASED``."""

    RELEASED = "released"
    NOT_YOURS = "not_yours"
    """Another holder has the lock: the lease had expired."""
    GONE = "gone"
    """The lock is free: the lease had expired, or it was released by force."""
    UNKNOWN = "unknown"
    """The store is unavailable. Only ``TaskLock`` returns this; backends raise."""

    def __bool__(self) -> bool:
        return self is Released.RELEASED


class Ending(NamedTuple):
    """What a release has found and left behind."""

    outcome: Released
    flagged: bool | None = None
    """Whether the name's flag was set, and is cleared now; ``None``: unknown."""
    marked: bool = False
    """Whether the mark was left."""


@dataclass(frozen=True, slots=True)
class Record:
    """A held lock in a store. Points in time are the store's, in milliseconds since 1970."""

    name: str
    token: str
    holder: Holder
    at: int
    until: int
    now: int
    fence: int
    ttl: int | None
    """The remaining milliseconds of the key; ``None``: no expiry; 0 or less: it has expired and is not removed yet."""
    waiting: int = 0
    asked: int = 0
    """When its release was requested; 0: it was not."""
    instances: int = 0
    """The number of independent stores that have it; 0: there is one store."""

    @property
    def lease_ends(self) -> float:
        """When its lease expires unless it is renewed; infinity where it does not expire."""
        return float("inf") if self.ttl is None else float(self.now + self.ttl)


@dataclass(frozen=True, slots=True)
class LimiterInfo:
    """A concurrency limiter, for people. Its members are sorted, the oldest first."""

    name: str
    limit: int
    """The limit of the object that was asked; other callers may have another one."""
    waiting: int
    """The number of waiters in the store's queue; 0 where waiters poll."""
    members: tuple[LockInfo, ...]

    @property
    def used(self) -> int:
        """The number of permits that are held."""
        return len(self.members)

    @property
    def free(self) -> int:
        """The number of permits that are free."""
        return max(0, self.limit - len(self.members))


@dataclass(frozen=True, slots=True)
class Condition:
    """The condition of a store that answers. Durations are seconds."""

    latency: float
    """The time from the request to the answer."""
    ahead: float | None = None
    """How far its clock is ahead of this machine's, plus or minus half the latency; ``None`` where it has no clock."""
    policy: str | None = None
    """Redis' eviction policy; empty where the store does not tell, ``None`` where nothing is ever evicted."""


class InstanceState(NamedTuple):
    """The state of one of several independent stores."""

    place: str
    """Its address, without a password."""
    error: str
    """The error of a store that does not answer; empty: it answers."""
    abstains: float | None
    """The seconds until it votes again, after it came back empty; 0: it votes. ``None``: it does not answer, or it is
    empty and no lock was requested since."""


_NO_TIMEOUT = 5 * 366 * 86400  # seconds: a lock without a timeout has one of ten years


@dataclass(frozen=True, slots=True)
class LockInfo(Mapping[str, Any]):
    """A held lock, for people. Durations are seconds, points in time are the store's. The token is not shown.

    It is also a mapping of plain values, ``info["ttl"]``: ``json.dumps(dict(info))`` works, with ``acquired_at`` as ISO
    8601 text.
    """

    name: str
    holder: str
    """Host, process and task."""
    fingerprint: str
    """A short hash of the holder's token, different for each hold."""
    acquired_at: datetime
    held_for: float
    """Seconds."""
    ttl: float | None
    """Seconds until the key expires unless it is renewed; ``None``: never; negative: it has expired."""
    time_left: float
    """Seconds until the end of the timeout; years where there is no timeout."""
    fence: int
    waiting: int
    """The number of callers that wait in their processes."""
    task: str
    task_id: str

    @property
    def without_timeout(self) -> bool:
        """Whether it has no timeout, so that ``time_left`` is years."""
        return self.held_for + self.time_left > _NO_TIMEOUT

    def __getitem__(self, key: str) -> Any:
        if key not in self.__dataclass_fields__:
            raise KeyError(key)
        value = getattr(self, key)
        return value.isoformat() if isinstance(value, datetime) else value

    def __iter__(self) -> Iterator[str]:
        return iter(self.__dataclass_fields__)

    def __len__(self) -> int:
        return len(self.__dataclass_fields__)
