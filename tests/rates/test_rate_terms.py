"""The terms of a named limiter belong to its store: a process that has others follows them, and stops nobody."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator

import pytest

from django_tasklock import RateLimiter, TaskLockError
from django_tasklock.backends.memory.store import store as memory
from django_tasklock.rates import booking as limit_base, schedule as wakening, terms as limit_terms
from django_tasklock.rates.background import returns
from django_tasklock.rates.terms import AgreedRates
from tests.support.public import in_store
from tests.support.stores import stores
from tests.support.twins import TWINS, call


@pytest.fixture(params=stores("redis", "database", "memory"), autouse=True)
def store(request, settings) -> Iterator[str]:
    if request.param == "database":
        from django_tasklock.models import RateRow

        RateRow.objects.all().delete()
    yield from in_store(request.param, settings)
    assert returns.wait()


@pytest.fixture
def at(monkeypatch) -> Callable[[str], None]:
    """From now on we are that process."""
    known: dict[str, AgreedRates] = {}

    def become(name: str) -> None:
        monkeypatch.setattr(limit_base, "agreed", lambda kept: known.setdefault(name, AgreedRates(kept, name)))

    return become


def fleet(at: Callable[[str], None], *rates: str) -> None:
    """Two processes that have these terms, and call."""
    for name in ("one", "two"):
        at(name)
        RateLimiter("api", *rates).try_acquire()


@TWINS
class TestRaised:
    def test_new_calls_do_not_stand_behind_the_backlog(self, way, at):
        at("old")
        waiting = [RateLimiter("api", "10/m").reserve() for _ in range(40)]
        assert waiting[-1].wait > 150
        fleet(at, "1000/m")
        at("two")
        assert call(way, RateLimiter("api", "1000/m"), "reserve").wait < 10

    def test_those_that_wait_go_soon(self, way, at, monkeypatch):
        monkeypatch.setattr(wakening, "LOOK", 0.05)
        at("old")
        waiting = [RateLimiter("api", "10/m").reserve() for _ in range(40)]
        assert waiting[-1].wait > 150
        fleet(at, "1000/m")
        at("old")
        call(way, waiting[-1], "use")
        assert waiting[-1].state == "used"
        assert RateLimiter("api", "10/m").usage().windows[0].limit == 1000


@TWINS
@pytest.mark.parametrize("store", ["memory"], indirect=True)
def test_who_waits_says_its_terms_as_well(way, at, monkeypatch):
    """Else all who wait behind an old backlog would be silent until its end."""
    monkeypatch.setattr(wakening, "LOOK", 0.05)
    monkeypatch.setattr(limit_terms, "DIFFERENT", 0.0)
    at("old")
    for _ in range(40):
        RateLimiter("api", "10/m").reserve()
    at("new")
    place = RateLimiter("api", "1000/m").reserve()
    assert place.wait > 150
    memory.skipped += 61.0  # what the old one has said holds no longer
    call(way, place, "use")
    assert place.state == "used"


@TWINS
@pytest.mark.parametrize("stray", [["1/h"], ["1000/m", "1/h"], ["2/m"]])
class TestStray:
    def test_it_stops_nobody_and_is_told(self, way, stray, at, caplog):
        fleet(at, "1000/m")
        at("stray")
        limiter = RateLimiter("api", *stray)
        with caplog.at_level(logging.WARNING, "django_tasklock"):
            assert max(call(way, limiter, "reserve").wait for _ in range(5)) < 0.001  # places are microseconds apart
        [told] = [one.getMessage() for one in caplog.records if "are in force" in one.getMessage()]
        assert "1000/m (window" in told
        assert ", ".join(stray) + " (window" in told
        at("one")
        assert call(way, RateLimiter("api", "1000/m"), "reserve").wait < 0.001

    def test_whoever_came_first(self, way, stray, at):
        """It has the limiter to itself until more processes have other terms."""
        at("stray")
        for _ in range(5):
            call(way, RateLimiter("api", *stray, max_wait=36000), "reserve")
        fleet(at, "1000/m")
        assert call(way, RateLimiter("api", "1000/m"), "reserve").wait < 10


def test_the_lower_limit_holds_for_one_that_has_a_greater(at):
    fleet(at, "4/h")
    at("stray")
    limiter = RateLimiter("api", "1000/m")
    assert [bool(limiter.try_acquire()) for _ in range(3)] == [True, True, False]
    with pytest.raises(TaskLockError, match="a cost of 5 does not fit into the limit 4/h of 'api' that is in force"):
        limiter.reserve(cost=5)


def test_how_long_one_would_wait_is_his_own_affair(at, caplog):
    fleet(at, "4/h")
    at("patient")
    assert RateLimiter("api", "4/h", max_wait=7200).reserve()
    assert "are in force" not in caplog.text


def test_a_book_of_an_earlier_version_has_no_terms_yet(at):
    """Whoever says his first has them; nothing that was booked is forgotten."""
    at("one")
    limiter = RateLimiter("api", "2/h")
    for _ in range(2):
        limiter.store.store.reserve(limiter.terms, 1, 0)
    assert not limiter.try_acquire()


@pytest.mark.parametrize("store", ["memory"], indirect=True)
def test_terms_of_a_version_that_is_not_known(at):
    """Nobody can keep to what he cannot read."""
    at("one")
    RateLimiter("api", "4/h").try_acquire()
    memory.rates["api"].rule = "newest  0 0 4 3600000000 7200000"
    with pytest.raises(TaskLockError, match="cannot be read: they are of another version"):
        RateLimiter("api", "4/h").try_acquire()
