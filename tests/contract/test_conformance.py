"""Every store through the contracts that it keeps, and what it says of those that it does not."""

from __future__ import annotations

import pytest

from django_tasklock.exceptions import TaskLockError
from tests.contract.conformance import (
    LapsingContract,
    ListingContract,
    LockContract,
    PermitContract,
    PermitWakingContract,
    RateContract,
    WakingContract,
)
from tests.support.conformance import Named
from tests.support.stores import ALL, BEYOND, LAPSING, LISTING, QUEUEING, WAKING, an_ask, clear, granted, make, stores


@pytest.mark.parametrize("name", stores(*ALL, *BEYOND), indirect=True)
class TestLocks(Named, LockContract):
    """Of every store."""


@pytest.mark.parametrize("name", stores(*LAPSING, *BEYOND), indirect=True)
class TestLapsing(Named, LapsingContract):
    """Of every store whose tests take it no second each."""


@pytest.mark.parametrize("name", stores(*LISTING, *BEYOND), indirect=True)
class TestListing(Named, ListingContract):
    """Of those with an index."""


@pytest.mark.parametrize("name", stores(*WAKING, *QUEUEING), indirect=True)
class TestWaking(Named, WakingContract):
    """Of those whose releases wake who waits."""


@pytest.mark.parametrize("name", stores(*LISTING, *QUEUEING), indirect=True)
class TestPermits(Named, PermitContract):
    """Of every store that has some."""


@pytest.mark.parametrize("name", stores(*WAKING, *QUEUEING), indirect=True)
class TestPermitWaking(Named, PermitWakingContract):
    """Of those whose releases wake who waits for a permit."""


@pytest.mark.parametrize("name", stores(*LISTING, *QUEUEING), indirect=True)
class TestRates(Named, RateContract):
    """Of every store that has rate limits."""


def test_the_stores_tested_as_waking_are_those_that_declare_it() -> None:
    every = [*ALL, "quorum-3"]
    assert [name for name in every if make(name).wakes] == list(WAKING)
    assert [name for name in LISTING if make(name).permits.wakes] == list(WAKING)


@pytest.mark.parametrize("name", stores("redis", "cluster"))
@pytest.mark.parametrize("prefix", ["lock-%.[a]#permits:", "x#permits:y:", "#permits::"])
def test_permits_under_a_prefix_with_special_characters(name: str, prefix: str) -> None:
    clear(name)
    permits, asks = make(name, KEY_PREFIX=prefix).permits, [an_ask("a"), an_ask("#permits:b")]
    for ask in asks:
        granted(permits.acquire(ask))
    assert sorted(permits.names()) == ["#permits:b", "a"]
    for ask in asks:
        permits.release(ask.name, ask.token)
    assert permits.names() == []


@pytest.mark.redis
@pytest.mark.parametrize(
    ("name", "what", "says"),
    [
        ("cache-core-redis", "permits", "CacheBackend has no permits: .* needs Redis or the database"),
        ("cache-core-redis", "rates", "CacheBackend keeps no rate limits"),
        ("quorum-3", "permits", "majority .* no permits .* need one Redis, .* or the database"),
        ("quorum-3", "rates", "majority .* no rate limits: .* need one Redis, .* or the database"),
    ],
)
def test_a_store_that_has_none_says_what_to_do(name: str, what: str, says: str) -> None:
    with pytest.raises(TaskLockError, match=says):
        getattr(make(name), what)
