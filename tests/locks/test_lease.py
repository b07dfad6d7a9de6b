"""A lease as a value: when it is due, when it ends, and what is reported of it once."""

from __future__ import annotations

from typing import Any

import pytest

from django_tasklock.locks import lease as leases
from django_tasklock.locks.lease import CHECK_INTERVAL, GONE, ROUNDING, Lease
from django_tasklock.types import Grant


class Clock:
    """A monotonic clock that stands still."""

    now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: Any) -> Clock:
    """The clock of the leases."""
    clock = Clock()
    monkeypatch.setattr(leases, "monotonic", clock)
    return clock


@pytest.fixture
def lease(clock: Clock) -> Lease:
    """A lease of 30 seconds, granted just now, of a lock with a timeout of 600 seconds."""
    lease = Lease(None, "video:42", 30_000)  # type: ignore[arg-type]
    lease.granted(Grant(7, 30_000), clock.now, 600_000)
    return lease


class TestTimes:
    def test_a_grant_counts_from_before_its_request(self, lease):
        assert (lease.fence, lease.until) == (7, 1600.0)
        assert lease.deadline == 1030.0 - ROUNDING

    def test_a_third_of_the_lease_passes_before_it_is_renewed(self, lease):
        assert lease.renew_at == 1010.0
        assert lease.renew_slack == 3.0

    def test_a_renewal_moves_the_deadline_but_not_the_timeout(self, lease):
        lease.renewed(1010.0, 60_000)
        assert (lease.deadline, lease.until) == (1070.0 - ROUNDING, 1600.0)
        assert (lease.renew_at, lease.renew_slack) == (1030.0, 6.0)

    def test_the_last_renewal_reaches_the_timeout(self, lease):
        assert not lease.reaches_timeout
        lease.renewed(1580.0, 20_000)
        assert lease.reaches_timeout


class TestLost:
    def test_it_is_lost_at_its_deadline_unless_it_was_renewed(self, lease, clock):
        clock.now = lease.deadline - 0.001
        assert lease.lost == ""
        clock.now = lease.deadline
        assert lease.lost == "it could not be renewed in time"
        lease.renewed(clock.now, 30_000)
        assert lease.lost == ""

    def test_at_the_timeout_that_is_the_reason(self, lease, clock):
        lease.renewed(1580.0, 20_000)
        clock.now = 1600.0
        assert lease.lost == "its timeout is over"

    def test_a_body_without_the_lock_has_no_deadline(self, lease, clock):
        lease.without_lock = True
        clock.now = 9999.0
        assert lease.lost == ""

    def test_a_loss_is_reported_once_and_stays(self, lease):
        calls = []
        lease.listeners.append(lambda: calls.append(1))
        assert lease.mark_lost(GONE) is True
        assert lease.mark_lost("another reason") is False
        lease.renewed(1010.0, 60_000)
        assert lease.lost == GONE
        assert calls == [1]

    def test_a_loss_after_the_release_is_not_reported(self, lease):
        lease.released = True
        assert lease.mark_lost(GONE) is False
        assert lease.lost == ""


class TestAsked:
    def test_a_request_is_reported_once(self, lease):
        calls = []
        lease.listeners.append(lambda: calls.append(1))
        assert lease.mark_asked() is True
        assert lease.mark_asked() is False
        assert lease.asked
        assert calls == [1]

    def test_a_request_after_the_release_is_not_reported(self, lease):
        lease.released = True
        assert lease.mark_asked() is False
        assert not lease.asked


class TestStore:
    def test_the_store_is_asked_once_in_the_interval(self, lease, clock):
        assert lease.should_check_store()
        assert not lease.should_check_store()
        clock.now += CHECK_INTERVAL
        assert lease.should_check_store()

    @pytest.mark.parametrize("state", ["without_lock", "asked"])
    def test_the_store_is_not_asked_what_is_known(self, lease, state):
        setattr(lease, state, True)
        assert not lease.should_check_store()

    def test_the_store_is_not_asked_of_a_lost_lease(self, lease):
        lease.mark_lost(GONE)
        assert not lease.should_check_store()


def test_it_belongs_to_the_generation_that_acquired_it(lease, monkeypatch):
    assert lease.inherited is False
    monkeypatch.setattr(leases, "generation", leases.generation + 1)
    assert lease.inherited is True
