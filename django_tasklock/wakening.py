"""What is decided between two sleeps of somebody who has a place at a rate limit: go, sleep, or ask the store.

The caller sleeps until its place and goes, without asking again. It does ask again (``resume``)

* when it is later than the margin: then the place is exchanged for another one, with the more
  leeway the more often it was late, so that nobody is late for ever, and nobody goes too late;
* after a sleep of more than a second, because meanwhile the limiter may have been stopped or
  reset; whoever else of this process has asked within the last moments has asked for it, too;
* in the middle of a long sleep: a place that was given back may be nearer.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, NamedTuple

from django_tasklock.backends.base_rates import Booked, RateStore, Refused
from django_tasklock.exceptions import BackendUnavailable, TaskLockError
from django_tasklock.limit_reports import seen, told_cancelled, told_granted, told_late, told_refused, watch_of
from django_tasklock.limit_returns import returns
from django_tasklock.rates import Terms
from django_tasklock.server_clock import clock_of
from django_tasklock.types import monotonic

if TYPE_CHECKING:
    from django_tasklock.limits import RateLimiter
    from django_tasklock.reservations import Reservation

__all__ = ["Desk", "Wakening"]

CONFIRM = 1.0  # seconds asleep after which the store is asked on waking
FRESH = 0.2  # seconds for which an answer to somebody else in this process will do
HALVED = 10.0  # a longer sleep is interrupted half-way
MOST = 10_000_000  # microseconds of leeway


class Desk(NamedTuple):
    """Where a place was booked, and by which terms."""

    store: RateStore
    terms: Terms


class Wakening:
    """A place, and what is to be done next. Use ``Reservation``."""

    def __init__(self, limiter: RateLimiter, desk: Desk, cost: int, deadline: float) -> None:
        self.limiter = limiter
        self.cost = cost
        self.deadline = deadline
        """When the caller will not wait any longer, by this process's clock."""
        self.shared: Reservation | None = None
        """A tenant's place at the limit that all tenants share, once that is booked."""
        self.state = "booked"
        """``booked``, ``used``, ``cancelled``, or ``moved``: somebody else has its ticket."""
        self.spaced = False
        """Whether, if it has to be exchanged, it is for one at some distance from the others."""
        self.missed = False
        """Whether the place that was moved here was missed on its way, and this is another one."""
        self._desk = desk
        self._booked: Booked | None = None
        self._began = self._sent = self._heard = monotonic()
        self._asleep = 0.0
        self._halfway = False
        self._waited = False
        self._missed = 0

    def at(self, booked: Booked, sent: float) -> None:
        """This place, which was asked for at ``sent``."""
        self._booked, self._sent, self._heard = booked, sent, monotonic()
        clock_of(self._desk.store).heard(booked, sent, self._heard)
        seen(self.limiter.name, sent, booked)

    @property
    def booked(self) -> bool:
        """False: let through without a place, because the store could not be asked."""
        return self._booked is not None

    @property
    def wait(self) -> float:
        """Seconds until it is its turn."""
        if self.shared is not None:
            return self.shared.wait
        if self._booked is None:
            return 0.0
        return max(0.0, self._heard + self._booked.wait / 1_000_000 - monotonic())

    @property
    def time(self) -> datetime:
        """When it is its turn, by the store's clock."""
        if self.shared is not None:
            return self.shared.time
        if self._booked is None:
            return datetime.now(UTC)
        return datetime.fromtimestamp(self._booked.time / 1_000_000, UTC)

    @property
    def late(self) -> float:
        """Seconds since its turn by the store's clock; never too little. Negative: not yet."""
        if self._booked is None:
            return 0.0
        now = monotonic()
        late = now - self._sent - self._booked.wait / 1_000_000
        return min(late, clock_of(self._desk.store).latest(now) - self._booked.time / 1_000_000)

    def move(self) -> str:
        """The place as text, for another process: ``limiter.restore(text)``. This reservation has it no longer."""
        booked = self._open()
        self.state = "moved"
        own = "" if booked is None else f"{booked.slot}:{booked.epoch}:{self.cost}"
        return own if self.shared is None or self.shared.state != "booked" else f"{own}+{self.shared.move()}"

    def _open(self) -> Booked | None:
        if self.state != "booked":
            raise TaskLockError(f"this reservation at {self.limiter.name!r} was {self.state} before")
        return self._booked

    def _next(self) -> float | None:
        """How long to sleep; 0: ask the store; ``None``: go."""
        booked = self._open()
        if booked is None:
            return None
        if self._halfway:
            return 0.0
        left = self.wait
        if left > 0:
            self._halfway = left > HALVED
            nap = left / 2 if self._halfway else left
            self._asleep += nap
            self._waited = True
            return nap
        if self._desk.terms.algorithm == "counter":  # it has no places to be late for
            return None
        if self.late * 1_000_000 > self._desk.terms.margin + booked.leeway:
            return 0.0
        return None if self._current(booked) else 0.0

    def _current(self, booked: Booked) -> bool:
        """Whether the limiter surely stands as it did when the place was booked."""
        view = watch_of(self.limiter.name).view
        if view is not None and view.at > self._sent:
            if (view.epoch, view.pause) != (booked.epoch, booked.pause):
                return False
            if monotonic() - view.at < FRESH:
                return True
        return self._asleep < CONFIRM

    @property
    def _patience(self) -> float:
        """Seconds to wait for somebody else's answer."""
        return max(0.001, self._desk.terms.margin / 2_000_000)

    def _longest(self) -> int:
        """Microseconds that are left."""
        return min(self._desk.terms.horizon, max(0, int((self.deadline - monotonic()) * 1_000_000)))

    @property
    def _leeway(self) -> int:
        """Microseconds: none at first, then one margin, three, seven..."""
        return min(MOST, self._desk.terms.margin * ((1 << min(self._missed, 16)) - 1))

    def _asking(self) -> tuple[Booked, float, float]:
        """The place to ask about, when, and how late it is. Until the answer there is nothing to give back:
        it may have been exchanged."""
        booked, late = self._booked, self.late
        assert booked is not None
        self._booked = None
        return booked, monotonic(), late

    def _answered(self, asked: tuple[Booked, float, float], answer: Booked | Refused) -> None:
        old, sent, late = asked
        if isinstance(answer, Refused):
            self.state = "cancelled"
            seen(self.limiter.name, sent, answer)
            raise told_refused(self._desk.terms, answer.wait, self._longest())
        if answer.slot > old.slot and answer.epoch == old.epoch:
            self._missed += 1
            told_late(self.limiter.name, late)
        self._asleep = 0.0
        self._halfway = False
        self.at(answer, sent)

    def _done(self) -> None:
        self.state = "used"
        told_granted(self.limiter.name, monotonic() - self._began if self._waited else 0.0, self.cost)

    def _ended(self) -> bool:
        """End it; whether there is nothing to give back."""
        if self.state in ("cancelled", "moved"):
            return True
        self.state = "cancelled"
        return self._booked is None

    def _abandon(self) -> None:
        """Give it back from elsewhere: a cancelled task had better not await its own clean-up."""
        if self.shared is not None:
            self.shared._abandon()
        if not self._ended():
            returns.give(self._return)

    def _return(self) -> bool:
        assert self._booked is not None
        store, terms = self._desk
        try:
            returned = store.cancel(terms, self.cost, self._booked.slot, self._booked.epoch)
        except BackendUnavailable:
            returned = False
        told_cancelled(self.limiter.name, returned)
        return returned
