"""Fixtures for tests in several processes: ``pytest_plugins = ["tests.support.worker_fixtures"]``."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
import redis

from tests.support import environment
from tests.support.workers import Crew, Trips


@pytest.fixture
def crew() -> Iterator[Crew]:
    """Processes for this test: ``crew.hire()``."""
    hired = Crew()
    try:
        yield hired
    finally:
        hired.dismiss()


@pytest.fixture
def trips() -> Iterator[Trips]:
    """``with trips: ...``, then ``trips.number``."""
    with redis.Redis.from_url(os.environ[environment.REDIS]) as store:
        yield Trips(store)
