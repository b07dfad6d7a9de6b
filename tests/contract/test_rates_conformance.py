"""Every store that has rate limits through their contract."""

from __future__ import annotations

import pytest

from django_tasklock.exceptions import TaskLockError
from tests.contract.conformance import RateContract
from tests.support.conformance import Named
from tests.support.stores import BEYOND, LISTING, make, stores


@pytest.mark.parametrize("name", stores(*LISTING, *BEYOND), indirect=True)
class TestRates(Named, RateContract):
    """Of every store that has some."""


def test_a_cache_says_that_it_has_none() -> None:
    backend = make("cache-core-redis")
    with pytest.raises(TaskLockError, match="CacheBackend keeps no rate limits"):
        _ = backend.rates
