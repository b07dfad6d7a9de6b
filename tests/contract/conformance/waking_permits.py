"""The contract of a store whose releases of permits wake waiters."""

from __future__ import annotations

from django_tasklock.backends.contract.stores import Permits
from django_tasklock.types import Busy, Grant, Released
from tests.contract.conformance.permits import NAME, PermitStoreContract, fill, tokens
from tests.support.stores import an_ask


class PermitWakingContract(PermitStoreContract):
    """A release hands the permit over to the first waiter that has not left."""

    def test_waiters_are_served_in_order_of_arrival_and_are_not_overtaken(self, permits: Permits) -> None:
        taken = fill(permits, 2)
        waiters = [permits.waiter(an_ask(NAME, limit=2)) for _ in range(4)]
        for waiter in waiters:
            assert isinstance(waiter.acquire(), Busy)
        assert permits.members(NAME)[0].waiting == 4
        for number, waiter in enumerate(waiters):
            assert permits.release(NAME, taken.pop(0)) is Released.RELEASED
            assert isinstance(permits.acquire(an_ask(NAME, limit=2)), Busy)
            assert [other.request.token in tokens(permits) for other in waiters].count(True) <= 2
            assert isinstance(waiter.wait(20), Grant), number
            waiter.leave()
            taken.append(waiter.request.token)
        for token in taken:
            permits.release(NAME, token)
        assert permits.members(NAME) == []

    def test_a_waiter_that_leaves_the_queue_delays_no_other_and_takes_no_permit(self, permits: Permits) -> None:
        taken = fill(permits, 1)
        gone, stays = (permits.waiter(an_ask(NAME, limit=1)) for _ in range(2))
        assert isinstance(gone.acquire(), Busy)
        assert isinstance(stays.acquire(), Busy)
        gone.leave()
        assert permits.members(NAME)[0].waiting == 1
        permits.release(NAME, taken[0])
        assert isinstance(stays.wait(20), Grant)
        stays.leave()
        assert tokens(permits) == [stays.request.token]

    def test_a_waiter_that_leaves_passes_on_the_permit_that_it_was_given(self, permits: Permits) -> None:
        taken = fill(permits, 1)
        gone, stays = (permits.waiter(an_ask(NAME, limit=1)) for _ in range(2))
        for waiter in (gone, stays):
            assert isinstance(waiter.acquire(), Busy)
        permits.release(NAME, taken[0])  # handed over to ``gone``, which does not ask
        gone.leave()
        assert isinstance(stays.wait(20), Grant)
        stays.leave()

    def test_the_first_waiter_is_served_before_those_with_greater_limits(self, permits: Permits) -> None:
        # Otherwise it could wait for ever while callers with a greater limit get permits.
        taken = fill(permits, 3)
        strict, generous = permits.waiter(an_ask(NAME, limit=1)), permits.waiter(an_ask(NAME, limit=5))
        assert isinstance(strict.acquire(), Busy)
        assert isinstance(generous.acquire(), Busy)
        for left, token in enumerate(taken[:2]):
            permits.release(NAME, token)
            assert len(tokens(permits)) == 2 - left
        permits.release(NAME, taken[2])
        assert isinstance(strict.wait(20), Grant)
        assert isinstance(generous.wait(20), Grant)
        strict.leave()
        generous.leave()
