"""The contract of every store for leases that end. Its tests wait for the end of leases."""

from __future__ import annotations

from django_tasklock.backends.contract.stores import LockStore
from django_tasklock.types import Busy, Grant, Released, Renewal, RenewalResult
from tests.contract.conformance.store import StoreContract, held, lapse
from tests.support.stores import an_ask, eventually, granted


class LapsingContract(StoreContract):
    """A lock is free when the lease of its holder has ended; the late holder does not touch its successor."""

    def test_a_request_that_supersedes_the_holder_is_granted_once(self, backend: LockStore) -> None:
        # Only once: the new holder has a token of its own.
        first = an_ask("video:1")
        before = granted(backend.acquire(first))
        mine, other = (an_ask("video:1", ttl=5000)._replace(supersedes=first.token) for _ in range(2))
        after = granted(backend.acquire(mine))
        assert after.ttl == 5000
        assert after.fence > before.fence
        assert granted(backend.acquire(mine)).fence == after.fence  # its first answer was lost
        assert isinstance(backend.acquire(other), Busy)
        assert held(backend.get("video:1")).token == mine.token
        assert backend.renew([Renewal("video:1", first.token, 5000)]) == [RenewalResult.LOST]
        assert backend.release("video:1", first.token) is Released.NOT_YOURS
        assert backend.release("video:1", mine.token) is Released.RELEASED

    def test_a_lapsed_holder_has_nothing_and_does_not_touch_its_successor(self, backend: LockStore) -> None:
        mine, other = an_ask("video:1"), an_ask("video:1")
        lapse(backend, mine)
        for state, found in ((Released.GONE, None), (Released.NOT_YOURS, other.token)):
            assert backend.extend("video:1", mine.token, 60_000, 60_000) is False
            assert backend.renew([Renewal("video:1", mine.token, 60_000)]) == [RenewalResult.LOST]
            assert backend.release("video:1", mine.token) is state
            record = backend.get("video:1")
            assert (None if record is None else record.token) == found
            if found is None:
                granted(backend.acquire(other))

    def test_the_fence_grows_after_a_lapse_and_after_a_removal(self, backend: LockStore) -> None:
        mine = an_ask("video:1")
        [first] = lapse(backend, mine)
        second = granted(backend.acquire(mine))  # with the same token, too: it is a new grant
        assert backend.remove("video:1") is not None
        third = granted(backend.acquire(an_ask("video:1")))
        assert first < second.fence < third.fence

    def test_a_waiter_notices_that_the_holder_died(self, backend: LockStore) -> None:
        holder, mine = an_ask("video:1"), an_ask("video:1")
        granted(backend.acquire(holder))
        with backend.waiter(mine) as waiter:
            assert isinstance(waiter.acquire(), Busy)
            assert backend.extend("video:1", holder.token, 100, 100)
            eventually(lambda: isinstance(waiter.acquire(), Grant) or waiter.wait(0.1))
        assert held(backend.get("video:1")).token == mine.token
