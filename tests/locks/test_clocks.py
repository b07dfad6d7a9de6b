"""Time is the store's: a client whose clock is wrong takes, keeps and sees locks like any other."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from django_tasklock.backends.contract.stores import LockStore
from django_tasklock.types import Busy, Released, Renewal, RenewalResult
from tests.support.stores import an_ask, clear, granted, make, stores

DAY = 86_400


@pytest.fixture(params=stores("redis", "database"))
def backend(request: pytest.FixtureRequest) -> Iterator[LockStore]:
    """A store with a clock of its own."""
    clear(request.param)
    made = make(request.param)
    yield made
    made.close()


@pytest.mark.parametrize("skew", [-DAY, DAY])
def test_a_wrong_client_clock_changes_nothing(backend: LockStore, monkeypatch: pytest.MonkeyPatch, skew: int) -> None:
    """Gold standard 8.19: with the client a day off, leases, ages and fences are as they are."""
    before = granted(backend.acquire(an_ask("earlier")))
    true, true_ns = time.time, time.time_ns
    monkeypatch.setattr(time, "time", lambda: true() + skew)
    monkeypatch.setattr(time, "time_ns", lambda: true_ns() + skew * 10**9)

    ask = an_ask("video:1", ttl=30_000, hold=60_000)
    fence = granted(backend.acquire(ask)).fence
    assert isinstance(backend.acquire(an_ask("video:1")), Busy)
    assert backend.renew([Renewal("video:1", ask.token, 30_000)]) == [RenewalResult.RENEWED]

    record = backend.get("video:1")
    assert record is not None
    assert record.ttl is not None
    assert 0 <= record.now - record.at < 20_000
    assert 0 < record.ttl <= 30_000
    assert abs(record.now / 1000 - true()) < 60
    assert 0 <= fence - before.fence < 60 * 10**6  # microseconds of the store's clock
    assert [record.name for record in backend.records()] == ["video:1", "earlier"]
    assert backend.records("orphaned") == []
    assert backend.release("video:1", ask.token) is Released.RELEASED
