"""Every store of ours that has permits through the public contracts, ``django_tasklock.testing.conformance``."""

from __future__ import annotations

import pytest

from django_tasklock.exceptions import TaskLockError
from django_tasklock.testing.conformance import PermitContract, PermitWakingContract
from tests.support.conformance import Named
from tests.support.stores import BEYOND, LISTING, WAKING, make, stores


@pytest.mark.parametrize("name", stores(*LISTING, *BEYOND), indirect=True)
class TestPermits(Named, PermitContract):
    """Of every store that has some."""


@pytest.mark.parametrize("name", stores(*WAKING, *BEYOND), indirect=True)
class TestWaking(Named, PermitWakingContract):
    """Of those whose releases wake who waits."""


def test_who_wakes_is_who_says_so() -> None:
    assert [name for name in LISTING if make(name).permits.wakes] == list(WAKING)


def test_a_cache_says_that_it_cannot_count() -> None:
    backend = make("cache-core-redis")
    with pytest.raises(TaskLockError, match="CacheBackend has no permits: .* needs Redis or the database"):
        _ = backend.permits
