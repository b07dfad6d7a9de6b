"""Places that change hands: booked here, used by another process. The half of ``RateLimiter`` that knows tickets."""

from __future__ import annotations

from django_tasklock.backends.contract.rates import Booked, Refused
from django_tasklock.conf import Duration
from django_tasklock.exceptions import BackendUnavailable, TaskLockError
from django_tasklock.rates import events
from django_tasklock.rates.booking import LimiterBase
from django_tasklock.rates.events import watch_of
from django_tasklock.rates.reservation import Reservation
from django_tasklock.types import monotonic


class LimitTickets(LimiterBase):
    """Books, hands over, takes up again, gives back. Use ``RateLimiter``."""

    def reserve_many(self, number: int, timeout: Duration | None = None, *, cost: int = 1) -> list[Reservation]:
        """Book so many places, all or none, spread evenly: for work that is handed out. Raises as ``acquire`` does."""
        asked, deadline = self._asked, self._deadline(timeout)
        asked._units(cost)
        places = [asked._new(cost, deadline) for _ in range(number)]
        sent = monotonic()
        try:
            answers = asked.store.reserve_many(asked.terms, cost, asked._longest(deadline), number)
        except BackendUnavailable as error:
            for place in places:
                place._desk = asked.without(place, error)
            return places
        booked = [asked._given(place, sent, answer) for place, answer in zip(places, answers, strict=False)]
        if booked and isinstance(booked[-1], Refused):
            for place in reversed(places[: len(booked) - 1]):
                place.cancel()
            asked._or_raise(booked[-1], deadline)
        return places

    def book(self, deadline: float, cost: int, spaced: bool = False) -> Reservation:
        """``reserve`` with a deadline by this process's clock, and nothing of tenants. ``spaced``: if it has to wait,
        at some distance from the place before."""
        place = self._new(cost, deadline)
        if spaced:
            place.spaced = True
        if (standing := self._outage.standing()) is not None:
            place._desk = self.without(place, standing)
            return place
        sent, watch, (store, terms) = monotonic(), watch_of(self.name), place._desk
        asks = spaced or watch.lonely
        watch.booking += 1
        try:
            answer = store.reserve(terms, cost, self._longest(deadline, sent), spaced, asks)
        except BackendUnavailable as error:
            place._desk = self.without(place, error)
            return place
        finally:
            watch.booking -= 1
        return self._or_raise(self._given(place, sent, answer), deadline)

    def restore(self, ticket: str, timeout: Duration | None = None, *, spaced: bool = False) -> Reservation:
        """The reservation that another process has moved: its own place if that is still to come, another one if
        it was missed. An empty ticket: the next place. Raises as ``acquire`` does."""
        if not ticket:
            return self._asked.book(self._deadline(timeout), 1, spaced)
        return self._asked._restored(self._parts(ticket), self._deadline(timeout), spaced)

    def _restored(self, parts: list[tuple[int, int, int]], deadline: float, spaced: bool) -> Reservation:
        (slot, epoch, cost), *rest = parts
        place, sent = self._new(cost, deadline), monotonic()
        place.spaced = spaced
        if rest and self.shared is not None:  # its own turn has come before
            place._booked = Booked(slot, 0, epoch, 0, 0)
            try:
                place.shared = self.shared._restored(rest, deadline, spaced)
            except TaskLockError:
                place.cancel()
                raise
            place.missed = place.shared.missed
            return place
        try:
            answer = self.store.resume(self.terms, cost, slot, epoch, self._longest(deadline), spaced)
        except BackendUnavailable as error:
            place._desk = self.without(place, error)
            return place
        place = self._or_raise(self._given(place, sent, answer), deadline)
        assert isinstance(answer, Booked)
        if answer.slot > slot and abs(answer.epoch - epoch) <= 1:
            place.missed = True
            events.late(self.name, max(0, answer.time - answer.wait - answer.pause - slot) / 1_000_000)
        return place

    def give_back(self, ticket: str) -> bool:
        """The place of a ticket was not used and will not be. False: there was nothing left to give back."""
        limiter: LimitTickets | None = self._asked
        returned = False
        for slot, epoch, cost in self._parts(ticket) if ticket else ():
            if limiter is None:
                break
            try:
                returned = limiter.store.cancel(limiter.terms, cost, slot, epoch)
            except BackendUnavailable:
                returned = False
            events.cancelled(limiter.name, returned)
            limiter = limiter.shared
        return returned

    def _parts(self, ticket: str) -> list[tuple[int, int, int]]:
        try:
            return [
                (int(slot), int(epoch), int(cost)) for slot, epoch, cost in (_.split(":") for _ in ticket.split("+"))
            ]
        except ValueError:
            raise TaskLockError(f"{ticket!r:.80} is no ticket of a reservation", name=self.name) from None
