"""A limit in its store: where a reservation is booked, and by which terms."""

from __future__ import annotations

from typing import NamedTuple

from django_tasklock.backends.contract.rates import Booked, RateStore, Terms
from django_tasklock.exceptions import BackendUnavailable
from django_tasklock.rates import events
from django_tasklock.rates.limiter_view import LimiterView, view_of
from django_tasklock.rates.server_clock import ServerClock
from django_tasklock.rates.slots import Slot
from django_tasklock.types import monotonic


class StoredLimit(NamedTuple):
    """A store, the terms of a limiter in it, and the estimate of the store's clock."""

    store: RateStore
    terms: Terms
    clock: ServerClock

    @property
    def margin(self) -> int:
        """The microseconds for which a slot may be used after its time."""
        return self.terms.margin

    @property
    def view(self) -> LimiterView:
        """This process's view of the limiter."""
        return view_of(self.terms.name)

    def record_booked(self, booked: Booked, sent: float) -> Slot:
        """Return the slot of an answer to a request that was sent at ``sent``, and update the estimate of the clock."""
        slot = Slot(booked, sent, received := monotonic())
        self.clock.record(booked, sent, received)
        return slot

    def cancel(self, cost: int, slot: int, edition: int) -> bool:
        """Return a slot to the store, and report it. False: it was used already, or the store is down."""
        try:
            returned = self.store.cancel(self.terms, cost, slot, edition)
        except BackendUnavailable:
            returned = False
        events.cancelled(self.terms.name, returned)
        return returned

    async def acancel(self, cost: int, slot: int, edition: int) -> bool:
        """Do what ``cancel`` does, for coroutines."""
        try:
            returned = await self.store.acancel(self.terms, cost, slot, edition)
        except BackendUnavailable:
            returned = False
        events.cancelled(self.terms.name, returned)
        return returned
