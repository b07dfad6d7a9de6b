"""Every store that has permits through their contracts."""

from __future__ import annotations

import pytest

from django_tasklock.exceptions import TaskLockError
from tests.contract.conformance import PermitContract, PermitWakingContract
from tests.support.conformance import Named
from tests.support.permits import a_request
from tests.support.stores import LISTING, QUEUEING, WAKING, clear, granted, make, stores


@pytest.mark.parametrize("name", stores(*LISTING, *QUEUEING), indirect=True)
class TestPermits(Named, PermitContract):
    """Of every store that has some."""


@pytest.mark.parametrize("name", stores(*WAKING, *QUEUEING), indirect=True)
class TestWaking(Named, PermitWakingContract):
    """Of those whose releases wake who waits."""


@pytest.mark.parametrize("name", stores("redis", "cluster"))
@pytest.mark.parametrize("prefix", ["lock-%.[a]#permits:", "x#permits:y:", "#permits::"])
def test_names_under_a_prefix_with_special_characters(name: str, prefix: str) -> None:
    clear(name)
    permits, asks = make(name, KEY_PREFIX=prefix).permits, [a_request("a", 1), a_request("#permits:b", 1)]
    for ask in asks:
        granted(permits.acquire(ask))
    assert sorted(permits.names()) == ["#permits:b", "a"]
    for ask in asks:
        permits.release(ask.name, ask.token)
    assert permits.names() == []


def test_the_stores_tested_as_waking_are_those_that_declare_it() -> None:
    assert [name for name in LISTING if make(name).permits.wakes] == list(WAKING)


def test_a_cache_says_that_it_cannot_count() -> None:
    backend = make("cache-core-redis")
    with pytest.raises(TaskLockError, match="CacheBackend has no permits: .* needs Redis or the database"):
        _ = backend.permits


@pytest.mark.redis
def test_a_majority_says_what_to_do() -> None:
    backend = make("quorum-3")
    with pytest.raises(TaskLockError, match="majority .* no permits .* need one Redis, .* or the database"):
        _ = backend.permits
