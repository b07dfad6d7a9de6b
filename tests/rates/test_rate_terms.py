"""Each caller of a limiter is held to its own terms, and counts what the others have booked."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

from django_tasklock import RateLimiter, TaskLockError
from tests.support.public import in_store
from tests.support.stores import stores
from tests.support.twins import TWINS, call


@pytest.fixture(params=stores("redis", "database", "memory"), autouse=True)
def store(request, settings) -> Iterator[str]:
    if request.param == "database":
        from django_tasklock.models import RateRow

        RateRow.objects.all().delete()
    yield from in_store(request.param, settings)


@TWINS
class TestADeploy:
    def test_that_lowers_the_limit(self, way):
        """Old processes go up to their limit, the new ones only while fewer than theirs are used."""
        old, new = RateLimiter("api", "4/h"), RateLimiter("api", "2/h")
        assert [bool(call(way, old, "try_acquire")) for _ in range(3)] == [True] * 3
        assert not call(way, new, "try_acquire")
        assert [bool(call(way, old, "try_acquire")) for _ in range(2)] == [True, False]

    def test_that_raises_the_limit(self, way):
        """Old processes are stopped by what the new ones use; together they never exceed the greater limit."""
        old, new = RateLimiter("api", "2/h"), RateLimiter("api", "4/h")
        assert [bool(call(way, old, "try_acquire")) for _ in range(3)] == [True, True, False]
        assert [bool(call(way, new, "try_acquire")) for _ in range(3)] == [True, True, False]

    def test_that_adds_a_rate(self, way):
        """What was booked before is not counted by it; no call is delayed by that."""
        for _ in range(3):
            call(way, RateLimiter("api", "1000/m"), "try_acquire")
        both = RateLimiter("api", "1000/m", "2/h")
        assert [bool(call(way, both, "try_acquire")) for _ in range(3)] == [True, True, False]
        assert call(way, RateLimiter("api", "1000/m"), "try_acquire")


def test_a_reservation_that_does_not_fit_any_more_is_refused():
    """It was moved before a deploy that lowered the limit: no window has room for it."""
    token = RateLimiter("api", "100/h").reserve(cost=50).move()
    with pytest.raises(TaskLockError, match="a cost of 50 does not fit into the limit 10/h of 'api'"):
        RateLimiter("api", "10/h").restore(token, 1)


def test_how_long_one_would_wait_is_his_own_affair(caplog):
    assert RateLimiter("api", "4/h").try_acquire()
    with caplog.at_level(logging.WARNING, "django_tasklock"):
        assert RateLimiter("api", "4/h", max_wait=7200).reserve()
    assert not caplog.records
