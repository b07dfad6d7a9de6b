"""Counts as frozen values, in seconds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from django_tasklock.backends.contract import metrics
from django_tasklock.backends.contract.metrics import BOUNDS, Count, Counted

BOUNDS_IN_SECONDS = tuple(bound / 1000 for bound in BOUNDS)
"""The upper bounds of all histogram buckets but the last, which has none."""


@dataclass(frozen=True, slots=True)
class Histogram:
    """A histogram of durations."""

    buckets: Sequence[int] = (0,) * (len(BOUNDS) + 1)
    """The number in each bucket alone, not cumulative; ``Histogram.bounds`` are the upper bounds."""
    seconds: float = 0.0
    """The sum of all durations."""

    @property
    def bounds(self) -> Sequence[float]:
        """The upper bounds, in seconds, of all buckets but the last, which has none."""
        return BOUNDS_IN_SECONDS

    @property
    def count(self) -> int:
        """The number of durations."""
        return sum(self.buckets)

    @property
    def mean(self) -> float | None:
        """The mean in seconds; ``None`` if there are none."""
        return self.seconds / self.count if self.count else None

    def quantile(self, share: float) -> float | None:
        """Return the quantile for ``share`` (0 to 1) in seconds; ``None`` if there are no durations.

        Interpolated linearly inside the buckets, as Prometheus does; for the last bucket only its lower bound is known.
        """
        rank, below = share * self.count, 0
        for number, (in_bucket, bound) in enumerate(zip(self.buckets, BOUNDS_IN_SECONDS, strict=False)):
            if in_bucket and below + in_bucket >= rank:
                lower = BOUNDS_IN_SECONDS[number - 1] if number else 0.0
                return lower + (bound - lower) * max(0.0, rank - below) / in_bucket
            below += in_bucket
        return BOUNDS_IN_SECONDS[-1] if self.count else None


@dataclass(frozen=True, slots=True)
class KindCounts:
    """Counts of the locks of one kind.

    ``acquired`` is ``wait.count``, ``released`` is ``hold.count``. An acquisition ends in one of ``released``,
    ``expired``, ``deleted`` and ``forced``.
    """

    kind: str
    """``video:{id}``, or a task's name; empty: locks without a kind."""
    wait: Histogram = field(default_factory=Histogram)
    """How long successful callers waited; 0 if granted at once."""
    hold: Histogram = field(default_factory=Histogram)
    """How long locks that their holders released were held."""
    expired: int = 0
    """Leases that ran out, counted when the sweep or the next caller detects it."""
    deleted: int = 0
    """Keys that disappeared early: deleted by hand, or evicted."""
    lost: int = 0
    """Holders that found out, while they ran, that they had lost the lock."""
    forced: int = 0
    """Locks released by force: by an operator, a sweep, or a caller that finds the holder's process dead."""
    transferred: int = 0
    """Locks handed over from one hold to the next, as over a retry; counted neither as acquired nor as released."""
    conflicts: Mapping[str, int] = field(default_factory=dict)
    """Conflicts, by what followed: ``skip``, ``raise``, ``retry``, ``reject``, ``queue``, ``coalesce``, and ``timeout``
    for callers that had waited."""

    @property
    def acquired(self) -> int:
        """The number of acquisitions."""
        return self.wait.count

    @property
    def released(self) -> int:
        """The number of releases by the holder."""
        return self.hold.count

    @property
    def held(self) -> int:
        """Acquisitions without a known end: held now, or orphaned and not yet detected."""
        return max(0, self.acquired - self.released - self.expired - self.deleted - self.forced)

    @property
    def conflicted(self) -> int:
        """The number of conflicts."""
        return sum(self.conflicts.values())


@dataclass(frozen=True, slots=True)
class LimiterCounts:
    """Counts of one rate limit or concurrency limiter."""

    limiter: str
    """The name, or its template; all tenants of a limiter are counted together, as ``tavily:tenant``."""
    at_once: int = 0
    """Calls let through without waiting."""
    wait: Histogram = field(default_factory=Histogram)
    """How long the other calls waited, or were told to wait: ``wait.count`` of them."""
    hold: Histogram = field(default_factory=Histogram)
    """How long released permits were held; empty for a rate limit."""
    refused: int = 0
    cancelled: int = 0
    """Reservations that were cancelled."""
    pushback: int = 0
    """Pauses requested by the remote side."""
    expired: int = 0
    """Permits whose lease ran out."""
    forced: int = 0
    """Permits released by an operator."""

    @property
    def is_concurrency(self) -> bool:
        """Whether the counts are those of a concurrency limiter: at least one permit has ended."""
        return bool(self.hold.count or self.expired or self.forced)

    @property
    def granted(self) -> int:
        """The number of calls let through."""
        return self.at_once + self.wait.count


@dataclass(frozen=True, slots=True)
class MessageCounts:
    """Counts of the parked messages of one task."""

    kind: str
    """The task's name."""
    parked: int = 0
    promoted: int = 0
    superseded: int = 0
    """``coalesce`` messages replaced by a newer one."""
    taken_over: int = 0
    """Messages started again after their worker had died."""


@dataclass(frozen=True, slots=True)
class Totals:
    """The counts of all processes. Each part is sorted by the greatest count first."""

    kinds: Sequence[KindCounts] = ()
    limiters: Sequence[LimiterCounts] = ()
    messages: Sequence[MessageCounts] = ()
    stale_writes: Mapping[str, int] = field(default_factory=dict)
    """Refused writes of stale claims, by model."""
    late_renewals: int = 0
    """Renewals of message leases by workers that were much too late."""

    def of_kind(self, kind: str) -> KindCounts:
        """Return the counts of the locks of one kind; zeros if there is none."""
        kind = metrics.clean_kind(kind)
        return next((one for one in self.kinds if one.kind == kind), KindCounts(kind))


@dataclass(frozen=True, slots=True)
class HourOfCounts:
    """The counts of one hour."""

    begins: datetime
    """In UTC."""
    totals: Totals


def totals_of(counted: Counted) -> Totals:
    """Convert the raw counts of a store."""
    kinds: dict[str, dict[str, Count]] = {}
    for (event, kind), count in counted.items():
        kinds.setdefault(kind, {})[event] = count
    locks, limiters, messages = [], [], []
    stale: dict[str, int] = {}
    late = 0
    for kind, found in kinds.items():
        if number := _number_of(found, metrics.STALE):
            stale[kind] = number
        late += _number_of(found, metrics.LATE)
        if any(event.startswith("message.") for event in found):
            messages.append(_to_message_counts(kind, found))
        if any(event.startswith("limit.") for event in found):
            limiters.append(_to_limiter_counts(kind, found))
        if not all("." in event for event in found):
            locks.append(_to_kind_counts(kind, found))
    return Totals(
        sorted(locks, key=lambda one: (-one.acquired - one.conflicted, one.kind)),
        sorted(limiters, key=lambda one: (-one.granted - one.refused, one.limiter)),
        sorted(messages, key=lambda one: (-one.parked, one.kind)),
        dict(sorted(stale.items())),
        late,
    )


def _number_of(found: Mapping[str, Count], event: str) -> int:
    return found.get(event, Count()).number


def _to_histogram(found: Mapping[str, Count], event: str, at_once: int = 0) -> Histogram:
    counts = [found.get(f"{event}:{number}", Count()) for number in range(len(BOUNDS) + 1)]
    buckets = [count.number for count in counts]
    buckets[0] += at_once
    return Histogram(tuple(buckets), sum(count.amount for count in counts) / 1000)


def _to_kind_counts(kind: str, found: Mapping[str, Count]) -> KindCounts:
    conflicts = {
        event.partition(":")[2]: count.number for event, count in found.items() if event.startswith(metrics.CONFLICT)
    }
    return KindCounts(
        kind,
        wait=_to_histogram(found, metrics.WAITED, _number_of(found, metrics.ACQUIRED)),
        hold=_to_histogram(found, metrics.RELEASED),
        expired=_number_of(found, metrics.EXPIRED),
        deleted=_number_of(found, metrics.DELETED),
        lost=_number_of(found, metrics.LOST),
        forced=_number_of(found, metrics.FORCED),
        transferred=_number_of(found, metrics.TRANSFERRED),
        conflicts=dict(sorted(conflicts.items())),
    )


def _to_limiter_counts(kind: str, found: Mapping[str, Count]) -> LimiterCounts:
    return LimiterCounts(
        kind,
        at_once=_number_of(found, metrics.GRANTED),
        wait=_to_histogram(found, metrics.GRANTED_LATE),
        hold=_to_histogram(found, metrics.PERMIT_RELEASED),
        refused=_number_of(found, metrics.REFUSED),
        cancelled=_number_of(found, metrics.CANCELLED),
        pushback=_number_of(found, metrics.PUSHBACK),
        expired=_number_of(found, metrics.PERMIT_EXPIRED),
        forced=_number_of(found, metrics.PERMIT_FORCED),
    )


def _to_message_counts(kind: str, found: Mapping[str, Count]) -> MessageCounts:
    return MessageCounts(
        kind,
        parked=_number_of(found, metrics.PARKED),
        promoted=_number_of(found, metrics.PROMOTED),
        superseded=_number_of(found, metrics.SUPERSEDED),
        taken_over=_number_of(found, metrics.TAKEN_OVER),
    )
