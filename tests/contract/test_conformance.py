"""Every store through the contracts of locks."""

from __future__ import annotations

import pytest

from tests.contract.conformance import LapsingContract, ListingContract, LockContract, WakingContract
from tests.support.conformance import Named
from tests.support.stores import ALL, BEYOND, LAPSING, LISTING, QUEUEING, WAKING, make, stores


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


def test_the_stores_tested_as_waking_are_those_that_declare_it() -> None:
    every = [*ALL, "quorum-3"]
    assert [name for name in every if make(name).wakes] == list(WAKING)
