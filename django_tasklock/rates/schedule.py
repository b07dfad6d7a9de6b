"""What is decided between two sleeps of somebody who has a place at a rate limit: go, sleep, or ask the store.

The caller sleeps until its place and goes, without asking again. It does ask again (``resume``)

* when it is later than the margin, and nobody else of this process sleeps whose place it could take: then
  the place is exchanged for another one, after some misses with the more leeway the more often it was
  late, so that nobody is late for ever, and nobody goes too late;
* when it stands in line: who is alone here asks in any case, and so can have the place of one who is late;
* after a sleep of more than a second, because meanwhile the limiter may have been stopped or
  reset; whoever else of this process has asked within the last moments has asked for it, too;
* in the middle of a long sleep: a place that was given back may be nearer.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, NamedTuple

from django_tasklock.backends.contract.rates import Booked, RateStore, Refused, Terms
from django_tasklock.exceptions import BackendUnavailable, TaskLockError
from django_tasklock.rates import events
from django_tasklock.rates.background import returns
from django_tasklock.rates.events import seen, watch_of
from django_tasklock.rates.lines import Line, Place
from django_tasklock.rates.server_clock import clock_of
from django_tasklock.types import monotonic

if TYPE_CHECKING:
    from django_tasklock.rates.limiter import RateLimiter
    from django_tasklock.rates.reservation import Reservation

CONFIRM = 1.0  # seconds asleep after which the store is asked on waking
FRESH = 1.0  # seconds for which an answer to somebody else in this process will do
PATIENCE = 1.0  # seconds to wait for others who exchange what was missed
HALVED = 10.0  # a longer sleep is interrupted half-way
LOOK = 15.0  # and the first one of a process after so long, too: other terms may be in force
MOST = 10_000_000  # microseconds of leeway
PATIENT = 2  # misses before there is any


class Desk(NamedTuple):
    """Where a place was booked, and by which terms."""

    store: RateStore
    terms: Terms


class Wakening:
    """A place, and what is to be done next. Use ``Reservation``."""

    # Most go at once: of what only others need nothing is stored.
    shared: Reservation | None = None
    """A tenant's place at the limit that all tenants share, once that is booked."""
    state = "booked"
    """``booked``, ``used``, ``cancelled``, or ``moved``: somebody else has its ticket."""
    spaced = False
    """Whether, if it has to be exchanged, it is for one at some distance from the others."""
    missed = False
    """Whether the place that was moved here was missed on its way, and this is another one."""
    _booked: Booked | None = None
    _left: Place | None = None
    _halfway = False
    _short = False
    _waited = False
    _missed = 0

    def __init__(self, limiter: RateLimiter, desk: Desk, cost: int, deadline: float) -> None:
        self.limiter = limiter
        self.cost = cost
        self.deadline = deadline
        """When the caller will not wait any longer, by this process's clock."""
        self._desk = desk
        self._began = self._sent = self._heard = monotonic()

    def at(self, booked: Booked, sent: float) -> None:
        """This place, which was asked for at ``sent``."""
        self._booked, self._sent, self._heard = booked, sent, monotonic()
        clock_of(self._desk.store).heard(booked, sent, self._heard)
        seen(self.limiter.name, sent, booked)

    @property
    def _terms(self) -> Terms:
        """Those that hold."""
        return self._desk.store.in_force(self._desk.terms)

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
        return 0.0 if self._booked is None else self._late(Place(self._booked, self._sent, self._heard))

    def _late(self, place: Place) -> float:
        booked, now = place.booked, monotonic()
        if (left := place.heard + booked.wait / 1_000_000 - now) > 0:
            return -left
        late = now - place.sent - booked.wait / 1_000_000
        return min(late, max(0.0, clock_of(self._desk.store).latest(now) - booked.time / 1_000_000))

    # Asleep, its place is anybody's of this process who is in time for it.

    @property
    def _line(self) -> Line:
        return watch_of(self.limiter.name).line((self._desk, self.cost))

    def _leave(self) -> None:
        booked = self._booked
        if booked is not None and not booked.asks and not self._halfway:
            self._left = Place(booked, self._sent, self._heard)
            self._line.put(self._left)

    def _arrive(self) -> None:
        left, self._left = self._left, None
        if left is not None and self.state == "booked":
            found = self._line.take(self._late, self._terms.margin / 1_000_000)
            # One that was refused has taken one more than it left: then the last has none, and books anew.
            self._has(found or left._replace(booked=left.booked._replace(epoch=0, asks=True)))

    def _reclaim(self) -> None:
        left, self._left = self._left, None
        if left is not None:
            self._has(self._line.reclaim(left))

    def _has(self, place: Place | None) -> None:
        if place is None:
            self._booked = None
        else:
            self._booked, self._sent, self._heard = place

    def move(self) -> str:
        """The place as text, for another process: ``limiter.restore(text)``. This reservation has it no longer."""
        self._reclaim()
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
        if self._asks_now(booked):
            return 0.0
        left = self.wait
        if left > 0:
            self._halfway = left > HALVED
            nap = min(left / 2, LOOK) if self._halfway else left
            self._short = self._halfway and nap == LOOK
            self._waited = True
            return nap
        return None

    def _asks_now(self, booked: Booked) -> bool:
        if self._halfway and not (self._short and self.wait > 0 and self._heard_of(booked, LOOK / 2)):
            return True
        if self.wait > 0:
            return False
        return booked.asks or self._was_missed or not self._current(booked)

    @property
    def _was_missed(self) -> bool:
        """Whether it is too late for the place."""
        booked = self._booked
        return booked is not None and self.late * 1_000_000 > self._terms.margin + booked.leeway

    @property
    def _of_many(self) -> bool:
        """Whether what it has missed is exchanged together with what others of this process have missed."""
        booked = self._booked
        return booked is not None and not booked.asks and not self._halfway and self.wait <= 0 and self._was_missed

    def _at_once(self) -> bool:
        """Whether it was its turn when it was booked, and that was just now: what most callers are told."""
        booked = self._booked
        if booked is None or booked.wait > 0 or self.state != "booked" or self.limiter.shared is not None:
            return False
        return (monotonic() - self._sent) * 1_000_000 - booked.wait <= self._terms.margin and not self._waited

    def _current(self, booked: Booked) -> bool:
        """Whether the limiter surely stands as it did when the place was booked."""
        view = watch_of(self.limiter.name).view
        if view is not None and view.at > self._sent:
            if (view.epoch, view.pause) != (booked.epoch, booked.pause):
                return False
            if monotonic() - view.at < FRESH:
                return True
        return monotonic() - self._heard < CONFIRM

    def _heard_of(self, booked: Booked, seconds: float) -> bool:
        """Whether somebody of this process has heard so lately that the limiter stands as it did."""
        view = watch_of(self.limiter.name).view
        known = booked.epoch - booked.asks, booked.pause
        return view is not None and monotonic() - view.at < seconds and (view.epoch, view.pause) == known

    @property
    def _patience(self) -> float:
        """Seconds to wait for somebody else's answer."""
        return max(0.001, self._terms.margin / 2_000_000)

    def _longest(self) -> int:
        """Microseconds that are left."""
        return min(self._terms.horizon, max(0, int((self.deadline - monotonic()) * 1_000_000)))

    @property
    def _leeway(self) -> int:
        """Microseconds: none for the first misses, then one margin, three, seven..."""
        return min(MOST, self._terms.margin * ((1 << min(max(0, self._missed - PATIENT), 16)) - 1))

    def _missed_places(self) -> list[Place]:
        """Its own place, and those of others, that are to be exchanged."""
        assert self._booked is not None
        own = Place(self._booked, self._sent, self._heard)
        self._booked = None
        return [own, *self._line.missed(self._late, self._terms.margin / 1_000_000, own.booked.epoch)]

    def _put_back(self, places: Sequence[Place]) -> None:
        """What has not been exchanged stays missed."""
        for place in places:
            self._line.put(place)

    def _exchanged(self, old: Sequence[Place], sent: float, answers: Sequence[Booked | Refused]) -> None:
        name, line = self.limiter.name, self._line
        for place, answer in zip(old, answers, strict=False):
            seen(name, sent, answer)
            if isinstance(answer, Booked):
                heard = monotonic()
                clock_of(self._desk.store).heard(answer, sent, heard)
                line.put(Place(answer, sent, heard))
                if answer.slot > place.booked.slot and answer.epoch == place.booked.epoch:
                    events.late(name, self._late(place))
        self._put_back(old[len(answers) :])
        self._missed += 1
        self._has(line.take(self._late, self._terms.margin / 1_000_000))
        if self._booked is None and isinstance(answers[0], Refused):
            self.state = "cancelled"
            raise events.refused(self._terms, answers[0].wait, self._longest())

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
            seen(self.limiter.name, sent, answer)
            self._has(self._line.take(self._late, self._terms.margin / 1_000_000))
            if self._booked is not None:  # what is refused is the last one's place, and this is not the last
                return
            self.state = "cancelled"
            raise events.refused(self._terms, answer.wait, self._longest())
        missed = answer.slot > old.slot and abs(answer.epoch - old.epoch) <= 1 and late > 0
        if missed:
            self._missed += 1
            events.late(self.limiter.name, late)
        self._halfway = False
        self.at(answer, sent)

    def _done(self) -> None:
        self.state = "used"
        events.granted(self.limiter.name, monotonic() - self._began if self._waited else 0.0, self.cost)

    def _ended(self) -> bool:
        """End it; whether there is nothing to give back."""
        self._reclaim()
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
        events.cancelled(self.limiter.name, returned)
        return returned
