"""A limit in the store that keeps it: where a reservation is booked, and by which terms."""

from __future__ import annotations

from typing import NamedTuple

from django_tasklock.backends.contract.rates import Booked, RateStore, Terms
from django_tasklock.exceptions import BackendUnavailable
from django_tasklock.rates import events
from django_tasklock.rates.server_clock import ServerClock
from django_tasklock.rates.sleepers import Slot
from django_tasklock.rates.watch import LimiterView, view_of
from django_tasklock.types import monotonic


class StoredLimit(NamedTuple):
    """A store, the terms of a limiter in it, and what is known of that store's clock."""

    store: RateStore
    terms: Terms
    clock: ServerClock

    @property
    def in_force(self) -> Terms:
        """The terms that hold: those of the store, as far as this process knows."""
        return self.store.in_force(self.terms)

    @property
    def margin(self) -> int:
        """The microseconds for which a slot may be used after its turn."""
        return self.in_force.margin

    @property
    def view(self) -> LimiterView:
        """The limiter as this process knows it."""
        return view_of(self.terms.name)

    def note(self, booked: Booked, sent: float) -> Slot:
        """Return the slot that a question of ``sent`` was answered with; what that says of the clock is noted."""
        slot = Slot(booked, sent, heard := monotonic())
        self.clock.hear(booked, sent, heard)
        return slot

    def cancel(self, cost: int, slot: int, edition: int) -> bool:
        """Give a slot back, and tell. False: there was nothing left to give back, or the store could not be asked."""
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
