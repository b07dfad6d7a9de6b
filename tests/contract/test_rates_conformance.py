"""Every store that has rate limits through their contract."""

from __future__ import annotations

import pytest

from django_tasklock.exceptions import TaskLockError
from tests.contract.conformance import RateContract
from tests.support.conformance import Named
from tests.support.stores import LISTING, QUEUEING, make, stores


@pytest.mark.parametrize("name", stores(*LISTING, *QUEUEING), indirect=True)
class TestRates(Named, RateContract):
    """Of every store that has some."""


def test_a_cache_says_that_it_has_none() -> None:
    backend = make("cache-core-redis")
    with pytest.raises(TaskLockError, match="CacheBackend keeps no rate limits"):
        _ = backend.rates


@pytest.mark.redis
def test_a_majority_says_what_to_do() -> None:
    backend = make("quorum-3")
    with pytest.raises(TaskLockError, match="majority .* no rate limits: .* need one Redis, .* or the database"):
        _ = backend.rates
