"""``Booker``: how reservations at one limiter are booked, also while its store is down."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from django_tasklock.backends import get_backend
from django_tasklock.backends.contract.locks import LockStore
from django_tasklock.backends.contract.rates import Booked, Refused, Terms
from django_tasklock.exceptions import BackendUnavailable, TaskLockError
from django_tasklock.rates import events
from django_tasklock.rates.background import shield_booking
from django_tasklock.rates.limiter_view import LimiterView, view_of
from django_tasklock.rates.options import LimitOptions
from django_tasklock.rates.outage import outage_of
from django_tasklock.rates.reservation import Limiter, Reservation, TokenPart
from django_tasklock.rates.server_clock import clock_of
from django_tasklock.rates.slots import Slot
from django_tasklock.rates.stored import StoredLimit
from django_tasklock.types import monotonic


class Booker:
    """Books reservations by the terms of one limiter, or of one of its tenants."""

    def __init__(self, limit: LimitOptions, terms: Terms, limiter_name: str) -> None:
        self.limit = limit
        self.terms = terms
        self.name = terms.name
        self.limiter_name = limiter_name
        """The name of the limiter; ``name`` also has the tenant."""
        self.outage = outage_of(limiter_name)
        """The outage of the store, if there is one; all tenants share it."""
        self._stored: tuple[LockStore, StoredLimit] | None = None

    @property
    def stored(self) -> StoredLimit:
        """The store of the current settings, with these terms."""
        backend, known = get_backend(), self._stored
        if known is None or known[0] is not backend:
            known = self._stored = backend, StoredLimit(backend.rates, self.terms, clock_of(backend.rates))
        return known[1]

    def check_cost(self, cost: int) -> None:
        """Raise ``TaskLockError`` for an invalid cost, and for one that exceeds a window."""
        if type(cost) is not int or cost < 1:
            raise TaskLockError(f"cost must be a whole number, 1 or more, not {cost!r}", name=self.name)
        terms = self.terms
        for rate in terms.rates:
            if cost > rate.limit:
                text = f"a cost of {cost} does not fit into the limit {rate} of {terms.name!r}"
                raise TaskLockError(text, name=self.name)

    def book(self, limiter: Limiter, deadline: float, cost: int, spaced: bool = False) -> Reservation:
        """Book the first free slot. Raises ``RateLimitExceeded`` if that is too late, and ``BackendUnavailable``."""
        stored = self.stored
        new = Reservation(limiter, stored, cost, deadline)
        if spaced:
            new.spaced = True
        if (recent := self.outage.recent_error()) is not None:
            self.apply_outage_policy(new, recent)
            return new
        view, max_wait = view_of(self.name), new.max_wait_at(new.began)
        will_resume = spaced or view.has_no_callers
        view.bookings_in_progress += 1
        try:
            answer = stored.store.reserve(stored.terms, cost, max_wait, spaced, will_resume)
        except BackendUnavailable as error:
            self.apply_outage_policy(new, error)
            return new
        finally:
            view.bookings_in_progress -= 1
        events.count_answer(self.name, answer)
        self._apply_answer(new, view, new.began, answer)
        return new

    async def abook(self, limiter: Limiter, deadline: float, cost: int) -> Reservation:
        """Do what ``book`` does, for coroutines."""
        stored = self.stored
        new = Reservation(limiter, stored, cost, deadline)
        if (recent := self.outage.recent_error()) is not None:
            self.apply_outage_policy(new, recent)
            return new
        view, max_wait = view_of(self.name), new.max_wait_at(new.began)
        request = stored.store.areserve(stored.terms, cost, max_wait, view.has_no_callers)
        view.bookings_in_progress += 1
        try:
            answer = await shield_booking(stored, cost, request)
        except BackendUnavailable as error:
            self.apply_outage_policy(new, error)
            return new
        finally:
            view.bookings_in_progress -= 1
        events.count_answer(self.name, answer)
        self._apply_answer(new, view, new.began, answer)
        return new

    def book_many(self, limiter: Limiter, deadline: float, cost: int, number: int) -> list[Reservation]:
        """Book ``number`` slots, all or none, spread evenly. Raises like ``book``."""
        stored = self.stored
        several = [Reservation(limiter, stored, cost, deadline) for _ in range(number)]
        if not several:
            return several
        sent = monotonic()
        try:
            answers = stored.store.reserve_many(stored.terms, cost, several[0].max_wait, number)
        except BackendUnavailable as error:
            with _all_or_none(several):
                for new in several:
                    self.apply_outage_policy(new, error)
            return several
        view = stored.view
        with _all_or_none(several):
            for new, answer in zip(several, answers, strict=False):
                events.count_answer(self.name, answer)
                self._apply_answer(new, view, sent, answer)
        return several

    def restore(self, limiter: Limiter, deadline: float, part: TokenPart, spaced: bool) -> Reservation:
        """Restore another process's reservation: its slot, or another one if it was missed. Raises like ``book``, and
        ``TaskLockError`` if the limit was lowered meanwhile, and its cost does not fit any more.
        """
        self.check_cost(part.cost)
        stored = self.stored
        new = Reservation(limiter, stored, part.cost, deadline)
        new.spaced = spaced
        try:
            answer = stored.store.resume(stored.terms, part.cost, part.slot, part.edition, new.max_wait, spaced)
        except BackendUnavailable as error:
            self.apply_outage_policy(new, error)
            return new
        booked = self._apply_answer(new, stored.view, new.began, answer)
        if booked.slot > part.slot and abs(booked.edition - part.edition) <= 1:
            new.missed = True
            events.late(self.name, max(0, booked.time - booked.wait - booked.total_pause - part.slot) / 1_000_000)
        return new

    def restore_due(self, limiter: Limiter, deadline: float, part: TokenPart) -> Reservation:
        """Return a reservation whose slot has come, for which another process has slept. It sends no request."""
        found = Reservation(limiter, self.stored, part.cost, deadline)
        found.slot = Slot(Booked(part.slot, 0, part.edition, 0, 0), found.began, found.began)
        return found

    def _apply_answer(self, new: Reservation, view: LimiterView, sent: float, answer: Booked | Refused) -> Booked:
        self.outage.end()
        view.record_answer(sent, answer)
        if isinstance(answer, Refused):
            raise new.refuse(answer)
        new.slot = new.stored.record_booked(answer, sent)
        return answer

    def apply_outage_policy(self, reservation: Reservation, error: BackendUnavailable) -> None:
        """Apply ``on_unavailable`` to a reservation. Raises ``error``."""
        self.outage.apply(self.name, self.limit.on_unavailable, error)


@contextmanager
def _all_or_none(several: Sequence[Reservation]) -> Iterator[None]:
    """Cancel all of these reservations if one of them cannot be booked."""
    try:
        yield
    except BaseException:
        for new in reversed(several):
            new.cancel()
        raise
