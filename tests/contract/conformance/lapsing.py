"""The contract of every store for leases that end. Its tests wait for the end of leases."""

from __future__ import annotations

import time

from django_tasklock.backends.contract.stores import LockStore
from django_tasklock.types import Busy, Grant, Released, Renewal, RenewalResult
from tests.contract.conformance.store import (
    SHORT,
    StoreContract,
    an_ask,
    eventually,
    granted,
    held,
    lapse,
    new_token,
)


class LapsingContract(StoreContract):
    """A lock is free when the lease of its holder has ended, and not before."""

    # Acquiring

    def test_acquiring_again_keeps_the_time_of_the_first_grant_and_renews_the_lease(self, backend: LockStore) -> None:
        token = new_token()
        sent = time.monotonic()
        backend.acquire(an_ask("video:1", token, ttl=1000))
        first = held(backend.get("video:1"))
        granted(backend.acquire(an_ask("video:1", token, ttl=60_000)))
        eventually(lambda: time.monotonic() > sent + 1.1)  # the first lease would be over
        second = held(backend.get("video:1"))
        assert (second.token, second.at) == (token, first.at)

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

    def test_a_token_whose_lease_lapsed_gets_the_lock_as_a_new_grant(self, backend: LockStore) -> None:
        mine = an_ask("video:1", ttl=SHORT)
        first = granted(backend.acquire(mine))
        lapse(backend, "video:1")
        assert granted(backend.acquire(mine)).fence > first.fence

    # Fence

    def test_the_fence_grows_after_a_lapse_and_after_a_removal(self, backend: LockStore) -> None:
        first = granted(backend.acquire(an_ask("video:1", ttl=SHORT)))
        lapse(backend, "video:1")
        second = granted(backend.acquire(an_ask("video:1")))
        assert backend.remove("video:1") is not None
        third = granted(backend.acquire(an_ask("video:1")))
        assert first.fence < second.fence < third.fence

    # Releasing

    def test_releasing_a_lapsed_lock_returns_gone(self, backend: LockStore) -> None:
        mine = an_ask("video:1", ttl=SHORT)
        backend.acquire(mine)
        lapse(backend, "video:1")
        assert backend.release("video:1", mine.token) is Released.GONE

    def test_a_lapsed_holder_does_not_touch_its_successor(self, backend: LockStore) -> None:
        mine, other = an_ask("video:1", ttl=SHORT), an_ask("video:1")
        backend.acquire(mine)
        lapse(backend, "video:1")
        granted(backend.acquire(other))
        assert backend.release("video:1", mine.token) is Released.NOT_YOURS
        assert backend.extend("video:1", mine.token, 60_000, 60_000) is False
        assert backend.renew([Renewal("video:1", mine.token, 60_000)]) == [RenewalResult.LOST]
        assert held(backend.get("video:1")).token == other.token

    # Extending

    def test_extend_does_not_bring_a_lapsed_lock_back(self, backend: LockStore) -> None:
        mine = an_ask("video:1", ttl=SHORT)
        assert backend.extend("video:1", mine.token, 60_000, 60_000) is False
        backend.acquire(mine)
        lapse(backend, "video:1")
        assert backend.extend("video:1", mine.token, 60_000, 60_000) is False
        assert backend.get("video:1") is None

    # Renewing

    def test_renewals_keep_a_lock_beyond_its_first_lease(self, backend: LockStore) -> None:
        mine = an_ask("video:1", ttl=1000)
        sent = time.monotonic()
        backend.acquire(mine)
        while time.monotonic() < sent + 1.3:
            assert backend.renew([Renewal("video:1", mine.token, 1000)]) == [RenewalResult.RENEWED]
            assert isinstance(backend.acquire(an_ask("video:1")), Busy)
            time.sleep(0.1)

    def test_renew_does_not_bring_a_lapsed_lock_back(self, backend: LockStore) -> None:
        mine = an_ask("video:1", ttl=SHORT)
        assert backend.renew([Renewal("video:1", mine.token, 60_000)]) == [RenewalResult.LOST]
        backend.acquire(mine)
        lapse(backend, "video:1")
        assert backend.renew([Renewal("video:1", mine.token, 60_000)]) == [RenewalResult.LOST]
        assert backend.get("video:1") is None

    # Reading

    def test_get_returns_none_for_a_lapsed_lock(self, backend: LockStore) -> None:
        backend.acquire(an_ask("video:1", ttl=SHORT))
        lapse(backend, "video:1")

    # Waiting

    def test_a_waiter_notices_that_the_holder_died(self, backend: LockStore) -> None:
        sent = time.monotonic()
        backend.acquire(an_ask("video:1", ttl=300))
        mine = an_ask("video:1")
        with backend.waiter(mine) as waiter:
            eventually(lambda: isinstance(waiter.acquire(), Grant) or waiter.wait(0.1))
        assert time.monotonic() - sent >= 0.298
        assert held(backend.get("video:1")).token == mine.token
