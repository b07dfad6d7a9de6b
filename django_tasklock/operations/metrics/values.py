"""Counts for people and for Prometheus: frozen values, in seconds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from django_tasklock.backends.contract import metrics
from django_tasklock.backends.contract.metrics import BOUNDS, Count, Counted

SECONDS = tuple(bound / 1000 for bound in BOUNDS)
"""Upper bounds of the buckets of every histogram but the last, which has none."""


@dataclass(frozen=True, slots=True)
class Histogram:
    """How many took how long."""

    buckets: Sequence[int] = (0,) * (len(BOUNDS) + 1)
    """The number in each bucket alone, not cumulative; ``Histogram.bounds`` are their upper bounds."""
    seconds: float = 0.0
    """All of them together."""

    @property
    def bounds(self) -> Sequence[float]:
        """Upper bounds in seconds of all buckets but the last, which has none."""
        return SECONDS

    @property
    def count(self) -> int:
        """How many there were."""
        return sum(self.buckets)

    @property
    def mean(self) -> float | None:
        """Seconds that one took on average; ``None``: there was none."""
        return self.seconds / self.count if self.count else None

    def quantile(self, share: float) -> float | None:
        """Return seconds within which this ``share`` (0 to 1) of them was over; ``None``: there was none.

        By straight lines inside the buckets, as Prometheus reckons; of the last bucket only its lower bound is known.
        """
        wanted, below = share * self.count, 0
        for number, (in_it, bound) in enumerate(zip(self.buckets, SECONDS, strict=False)):
            if in_it and below + in_it >= wanted:
                lower = SECONDS[number - 1] if number else 0.0
                return lower + (bound - lower) * max(0.0, wanted - below) / in_it
            below += in_it
        return SECONDS[-1] if self.count else None


@dataclass(frozen=True, slots=True)
class KindCounts:
    """What happened to the locks of one kind.

    ``acquired`` is ``wait.count``, ``released`` is ``hold.count``. An acquisition ends in one of ``released``,
    ``expired``, ``deleted`` and ``forced``.
    """

    kind: str
    """``video:{id}``, a task's name, or empty: locks without a kind."""
    wait: Histogram = field(default_factory=Histogram)
    """How long those who were granted it had waited; at once is 0."""
    hold: Histogram = field(default_factory=Histogram)
    """How long it was held by those who gave it back."""
    expired: int = 0
    """Leases that ran out, as far as somebody has found that out: the sweep does, or whoever wants the lock next."""
    deleted: int = 0
    """Locks that went before their time: deleted by hand, or evicted."""
    lost: int = 0
    """Holders that learned, while they ran, that the lock is not theirs any more."""
    forced: int = 0
    """Locks that were taken away: by an operator, a sweep, or whoever knows that the holder's process is dead."""
    transferred: int = 0
    """Locks that went from a hold to the one that follows it, as over a retry; neither acquired nor released there."""
    conflicts: Mapping[str, int] = field(default_factory=dict)
    """Times that it was busy, by what was to be done then: ``skip``, ``raise``, ``retry``, ``reject``, ``queue``,
    ``coalesce``, and ``timeout`` of whoever had waited."""

    @property
    def acquired(self) -> int:
        """How often it was granted."""
        return self.wait.count

    @property
    def released(self) -> int:
        """How often it was given back by its holder."""
        return self.hold.count

    @property
    def held(self) -> int:
        """How many of the acquisitions have not ended, as far as is known: held now, or orphaned and not yet found."""
        return max(0, self.acquired - self.released - self.expired - self.deleted - self.forced)

    @property
    def conflicted(self) -> int:
        """How often it was busy."""
        return sum(self.conflicts.values())


@dataclass(frozen=True, slots=True)
class LimiterCounts:
    """What happened at one limiter, of rates or of concurrency."""

    limiter: str
    """Its name, or the template of its name; all tenants of a limiter are one, ``tavily:tenant``."""
    at_once: int = 0
    """Calls that were let through at once."""
    wait: Histogram = field(default_factory=Histogram)
    """How long the others had to wait, or were told to: ``wait.count`` of them."""
    hold: Histogram = field(default_factory=Histogram)
    """How long permits were held that were given back; of a rate limit nothing."""
    refused: int = 0
    cancelled: int = 0
    """Reservations that were given back."""
    pushback: int = 0
    """Times that the other side asked for a pause."""
    expired: int = 0
    """Permits whose lease ran out."""
    forced: int = 0
    """Permits that were taken away."""

    @property
    def permits(self) -> bool:
        """Whether it is a concurrency limiter, as far as its counts tell: some permit has come back."""
        return bool(self.hold.count or self.expired or self.forced)

    @property
    def granted(self) -> int:
        """How many calls were let through."""
        return self.at_once + self.wait.count


@dataclass(frozen=True, slots=True)
class MessageCounts:
    """What happened to the parked messages of one task."""

    kind: str
    """The task's name."""
    parked: int = 0
    promoted: int = 0
    superseded: int = 0
    """``coalesce`` messages whose place a newer one took."""
    taken_over: int = 0
    """Messages that were started again after their worker had died."""


@dataclass(frozen=True, slots=True)
class Totals:
    """All that was counted, over all processes. In each part the one with the most of it comes first."""

    kinds: Sequence[KindCounts] = ()
    limiters: Sequence[LimiterCounts] = ()
    messages: Sequence[MessageCounts] = ()
    stale_writes: Mapping[str, int] = field(default_factory=dict)
    """Writes of overtaken claims that were refused, by model."""
    late_renewals: int = 0
    """Times that a worker renewed what it has from the broker much too late."""

    def of_kind(self, kind: str) -> KindCounts:
        """Return the counts of the locks of one kind; zeros if there is none."""
        kind = metrics.clean_kind(kind)
        return next((one for one in self.kinds if one.kind == kind), KindCounts(kind))


@dataclass(frozen=True, slots=True)
class HourOfCounts:
    """What was counted within one hour."""

    begins: datetime
    """In UTC."""
    totals: Totals


def totals_of(counted: Counted) -> Totals:
    """Return what a store has counted, in words."""
    kinds: dict[str, dict[str, Count]] = {}
    for (event, kind), count in counted.items():
        kinds.setdefault(kind, {})[event] = count
    locks, limiters, messages = [], [], []
    stale: dict[str, int] = {}
    late = 0
    for kind, found in kinds.items():
        if number := _number(found, metrics.STALE):
            stale[kind] = number
        late += _number(found, metrics.LATE)
        if any(event.startswith("message.") for event in found):
            messages.append(_messages(kind, found))
        if any(event.startswith("limit.") for event in found):
            limiters.append(_limiter(kind, found))
        if not all("." in event for event in found):
            locks.append(_kind(kind, found))
    return Totals(
        sorted(locks, key=lambda one: (-one.acquired - one.conflicted, one.kind)),
        sorted(limiters, key=lambda one: (-one.granted - one.refused, one.limiter)),
        sorted(messages, key=lambda one: (-one.parked, one.kind)),
        dict(sorted(stale.items())),
        late,
    )


def _number(found: Mapping[str, Count], event: str) -> int:
    return found.get(event, Count()).number


def _histogram(found: Mapping[str, Count], event: str, at_once: int = 0) -> Histogram:
    counts = [found.get(f"{event}:{number}", Count()) for number in range(len(BOUNDS) + 1)]
    buckets = [count.number for count in counts]
    buckets[0] += at_once
    return Histogram(tuple(buckets), sum(count.amount for count in counts) / 1000)


def _kind(kind: str, found: Mapping[str, Count]) -> KindCounts:
    conflicts = {
        event.partition(":")[2]: count.number for event, count in found.items() if event.startswith(metrics.CONFLICT)
    }
    return KindCounts(
        kind,
        wait=_histogram(found, metrics.WAITED, _number(found, metrics.ACQUIRED)),
        hold=_histogram(found, metrics.RELEASED),
        expired=_number(found, metrics.EXPIRED),
        deleted=_number(found, metrics.DELETED),
        lost=_number(found, metrics.LOST),
        forced=_number(found, metrics.FORCED),
        transferred=_number(found, metrics.TRANSFERRED),
        conflicts=dict(sorted(conflicts.items())),
    )


def _limiter(kind: str, found: Mapping[str, Count]) -> LimiterCounts:
    return LimiterCounts(
        kind,
        at_once=_number(found, metrics.GRANTED),
        wait=_histogram(found, metrics.GRANTED_LATE),
        hold=_histogram(found, metrics.PERMIT_RELEASED),
        refused=_number(found, metrics.REFUSED),
        cancelled=_number(found, metrics.CANCELLED),
        pushback=_number(found, metrics.PUSHBACK),
        expired=_number(found, metrics.PERMIT_EXPIRED),
        forced=_number(found, metrics.PERMIT_FORCED),
    )


def _messages(kind: str, found: Mapping[str, Count]) -> MessageCounts:
    return MessageCounts(
        kind,
        parked=_number(found, metrics.PARKED),
        promoted=_number(found, metrics.PROMOTED),
        superseded=_number(found, metrics.SUPERSEDED),
        taken_over=_number(found, metrics.TAKEN_OVER),
    )
