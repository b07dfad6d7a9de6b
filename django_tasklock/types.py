"""The values that travel between the layers. Frozen; the standard library only.

Inside the storage layer durations are whole milliseconds; people are shown seconds.
"""

from __future__ import annotations

import enum
import hashlib
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from itertools import repeat
from typing import Any, NamedTuple, Self

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
"""The first moment of the year 9999, in milliseconds since 1970: no later one can be shown."""


def fingerprint(token: str) -> str:
    """Return what people are shown in place of ``token``: enough to compare, too little to release with."""
    return hashlib.sha256(token.encode()).hexdigest()[:12] if token else ""


@dataclass(frozen=True, slots=True)
class Holder:
    """Who holds a lock, for people: never a proof of anything."""

    host: str = ""
    pid: int = 0
    boot: str = ""
    task: str = ""
    task_id: str = ""
    retries: int = 0
    """Which try of that task: Celery counts retries, not redeliveries."""
    proc: str = ""
    """Machine and start time of the process: what ``locks.holder.alive`` compares. Empty where they are not known."""
    row: str = ""
    """The guarded row that is worked on, ``videos.video:42``; empty where there is none."""
    kept: bool = False
    """Held for a message that is on its way: the end of the process says nothing."""
    limit: int = 0
    """Of a permit: how many its holder lets have one at once; 0: not known, or of a lock."""
    kind: str = ""
    """What it is counted as, ``video:{id}``; empty: as a lock without a kind, or not at all."""
    unreadable: bool = False
    """The value begins as ours do, and the rest of it cannot be read."""

    def __str__(self) -> str:
        where = f"{printable(self.host)}:{self.pid}" if self.host else "unreadable" if self.unreadable else "unknown"
        return f"{where} ({printable(self.task)}[{printable(self.task_id)}])" if self.task else where


class AcquireRequest(NamedTuple):
    """What a store must know to grant a lock.

    ``ttl_ms`` is how long the key lives unless renewed, ``hold_ms`` the most the holder may have it. ``holder`` is a
    JSON object.
    """

    name: str
    token: str
    ttl_ms: int
    hold_ms: int
    holder: str = "{}"
    supersedes: str = ""
    """The token of an earlier lease that this one follows: granted over it, once. Not for a waiter."""
    limit: int = 1
    """How many may have it at once: more than one for a permit of a concurrency limiter only."""
    kind: str | None = None
    """What it is counted as, ``video:{id}``; ``None``: it is not counted."""
    on_busy: str = ""
    """What the caller does if it is busy, to be counted; empty: it asks on."""
    waited: int | None = None
    """Milliseconds for which the caller has asked before, where the store does not know that; ``None``: it has not."""
    whole: bool = False
    """Nobody renews it: one that is handed over to this waiter lives for all of its time from the start."""

    def claim(self, most: int) -> int:
        """Return how long one lives that is handed over, in milliseconds: a *short claim* of ``most``, if renewed."""
        return self.ttl_ms if self.whole else min(self.ttl_ms, most)


class Grant(NamedTuple):
    """The lock is yours for ``ttl`` milliseconds. A ``ttl`` below the one asked for is a
    *short claim*, made by whoever passed the lock on; the first renewal makes it whole."""

    fence: int
    ttl: int


class Busy(NamedTuple):
    """Somebody else has the lock. ``record`` is ``None`` if that could not be read."""

    record: Record | None
    remaining: int | None = None
    """Milliseconds until the key expires; ``None``: it never does."""
    name: str = ""
    """Which of several names it is."""


class Renewal(NamedTuple):
    """One lock of a batch to renew: ``ttl`` milliseconds from now, if ``token`` still holds it."""

    name: str
    token: str
    ttl: int


class RenewalResult(enum.Enum):
    """What a renewal found. False only for ``LOST``."""

    RENEWED = "renewed"
    ASKED = "asked"
    """Renewed; and somebody asks the holder to give the lock back."""
    LOST = "lost"
    UNKNOWN = "unknown"
    """The part of the store that has this one could not be asked, others could: to be asked again."""

    def __bool__(self) -> bool:
        return self is not RenewalResult.LOST


class Released(enum.Enum):
    """What a release found. True only for ``RELEASED``."""

    RELEASED = "released"
    NOT_YOURS = "not_yours"
    """Somebody else has the lock: the lease had ended."""
    GONE = "gone"
    """Nobody has the lock: the lease had ended, or it was released by force."""
    UNKNOWN = "unknown"
    """The store could not be asked. Backends raise instead; only ``TaskLock`` answers this."""

    def __bool__(self) -> bool:
        return self is Released.RELEASED


class Lazy:
    """A frozen value whose fields are worked out when one of them is looked at: a list may have ten thousand."""

    __slots__ = ("_given", "_work")

    @classmethod
    def maker(cls, work: Callable[[Any], Mapping[str, Any]], *known: str) -> Callable[..., Self]:
        """Return a function that makes such values: of what ``work`` is given, and of the fields that are ``known``.

        ``work`` returns the others. It does not raise. To give it a value that is there already, or a tuple of texts
        and numbers, leaves the garbage collector the least to do.
        """
        new: Any = cls.__new__
        put_work, *puts = (getattr(cls, name).__set__ for name in ("_work", "_given", *known))

        def make(*values: Any) -> Any:
            value = new(cls)
            put_work(value, work)
            for put, one in zip(puts, values):  # noqa: B905  # a list makes ten thousand
                put(value, one)
            return value

        return make

    @classmethod
    def list_maker(cls, work: Callable[[Any], Mapping[str, Any]], *known: str) -> Callable[..., list[Self]]:
        """Return a function that makes a list of such values, field by field: of a list of what ``work`` is given, and
        of as many, or endlessly repeated, values of each field that is ``known``.

        What it does for each value it does in C: ten thousand are made in half the time that ``maker`` takes for them.
        """
        puts = [getattr(cls, name).__set__ for name in ("_work", "_given", *known)]

        def make(given: Sequence[Any], *columns: Iterable[Any]) -> list[Self]:
            made: list[Self] = list(map(cls.__new__, repeat(cls, len(given))))
            for put, column in zip(puts, (repeat(work), given, *columns), strict=True):
                deque(map(put, made, column), maxlen=0)  # as ``for`` would, without a turn of the interpreter for each
            return made

        return make

    def __getattr__(self, name: str) -> Any:
        if name in getattr(type(self), "__dataclass_fields__", ()):
            found = self._work(self._given)  # whoever has it made field by field has no field missing
            for field, one in found.items():  # another thread that works them out meanwhile finds the same
                object.__setattr__(self, field, one)
            return found[name]
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")


@dataclass(frozen=True, slots=True)
class Record(Lazy):
    """A held lock as the store knows it. Times are the store's, in milliseconds since 1970."""

    name: str
    token: str
    holder: Holder
    at: int
    until: int
    now: int
    fence: int
    ttl: int | None
    """Milliseconds the key has left; ``None``: no expiry; not positive: expired, not yet removed."""
    waiting: int = 0
    asked: int = 0
    """When somebody asked its holder to give it back; 0: nobody has."""
    instances: int = 0
    """How many of several independent stores have it; 0: there is one store."""

    @property
    def lease_ends(self) -> float:
        """The time at which its lease ends unless its holder renews it; infinity where it never does."""
        return float("inf") if self.ttl is None else float(self.now + self.ttl)


@dataclass(frozen=True, slots=True)
class LimiterInfo:
    """A concurrency limiter, for people: who has its permits, the one that has it longest first."""

    name: str
    limit: int
    """That of the object that was asked: other callers may have another one."""
    waiting: int
    """How many wait in the store's queue; 0 where waiters poll."""
    members: tuple[LockInfo, ...]

    @property
    def used(self) -> int:
        """How many permits are taken."""
        return len(self.members)

    @property
    def free(self) -> int:
        """How many are not."""
        return max(0, self.limit - len(self.members))


@dataclass(frozen=True, slots=True)
class Condition:
    """What a store that answers says of itself. Seconds."""

    latency: float
    """From the question to the answer."""
    ahead: float | None = None
    """How far its clock is ahead of this machine's, give or take half the latency; ``None`` where it has none."""
    policy: str | None = None
    """What it does when its memory is full, in Redis' words; empty where it does not tell, ``None`` where nothing is
    ever evicted."""


class InstanceState(NamedTuple):
    """What one of several independent stores says of itself."""

    place: str
    """Its address, without a password."""
    error: str
    """Why it does not answer; empty: it does."""
    abstains: float | None
    """Seconds for which it does not vote yet, because it came back empty; 0: it votes. ``None``: it does not answer,
    or is empty, and no lock was asked for since."""


_NO_TIMEOUT = 5 * 366 * 86400  # seconds: who has none asks for ten years


@dataclass(frozen=True, slots=True)
class LockInfo(Lazy, Mapping[str, Any]):
    """A held lock, for people. Seconds; times are the store's clock. The token is never shown.

    Also a mapping, ``info["ttl"]``, of plain values: ``json.dumps(dict(info))`` works, and gives
    ``acquired_at`` as ISO 8601 text.
    """

    name: str
    holder: str
    """Host, process, task: for people."""
    fingerprint: str
    """Of the holder's token: another one for every hold."""
    acquired_at: datetime
    held_for: float
    """Seconds."""
    ttl: float | None
    """Seconds until the key expires unless its holder renews it; ``None``: never; negative: it has expired."""
    time_left: float
    """Seconds until the holder has had it for its whole timeout; years where it has none."""
    fence: int
    waiting: int
    """Callers that wait in their processes."""
    task: str
    task_id: str

    @property
    def without_timeout(self) -> bool:
        """Whether its holder may have it until it is released: ``time_left`` then says years."""
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
