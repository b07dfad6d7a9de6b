"""Rate limits while the store cannot be asked, and after it has lost everything."""

from __future__ import annotations

import threading
import time
import traceback

import pytest

from django_tasklock import BackendUnavailable, RateLimiter, signals
from tests.support.guards import heard
from tests.support.rate_callers import most_within
from tests.support.redis_server import RedisServer, free_port
from tests.support.stores import eventually

pytest_plugins = ["tests.support.redis_fixtures"]
pytestmark = pytest.mark.redis


@pytest.fixture
def down(configure) -> None:
    """Nobody answers."""
    configure(LOCATION=f"redis://127.0.0.1:{free_port()}/0")


class TestPolicies:
    def test_closed_is_the_default(self, down, name):
        with heard(signals.rate_unavailable) as met, pytest.raises(BackendUnavailable) as caught:
            RateLimiter(name, "1/h").acquire()
        assert caught.value.name == name
        assert [one["action"] for one in met] == ["closed"]

    def test_a_store_that_is_up_and_refuses_lets_nothing_through(self, proxy, name):
        """Other processes may still reach it, so its limit applies."""
        limiter = RateLimiter(name, "1/h", on_unavailable="open")
        proxy.say("NOPERM this user has no permissions")
        with heard(signals.rate_unavailable) as met, pytest.raises(BackendUnavailable):
            limiter.acquire()
        assert [one["action"] for one in met] == ["closed"]

    def test_each_call_that_goes_on_without_the_store_is_told(self, down, name, warnings_logged):
        """An outage that lets everything through is seen: in the log, and by its signal."""
        limiter = RateLimiter(name, "1/h", tenants="1/h", on_unavailable="open")
        with heard(signals.rate_unavailable) as met:
            for key in "aab":
                assert limiter.tenant(key).try_acquire().state == "used"
        assert {one["action"] for one in met} == {"open"}
        assert len(met) >= 3
        assert len([text for text in warnings_logged() if "policy: open" in text]) == len(met)

    def test_the_limit_applies_again_when_the_store_is_back(self, proxy, name):
        limiter = RateLimiter(name, "2/h", on_unavailable="open")
        for _ in range(2):
            proxy.refuse()
            assert not limiter.acquire().booked
            proxy.heal()
            eventually(lambda: limiter.acquire().booked)
        assert not limiter.try_acquire()

    def test_the_store_is_not_asked_for_each_call_meanwhile(self, proxy, name):
        limiter = RateLimiter(name, "100/h", on_unavailable="open")
        proxy.say("LOADING later")
        with proxy.recorded() as sent, heard(signals.rate_unavailable) as met:
            for _ in range(20):
                limiter.acquire()
        assert len(sent) <= 4
        longest = max(len(traceback.extract_tb(one["error"].__traceback__)) for one in met)
        assert longest < 20, "the error of all of them grows with each"


class TestSleepers:
    def test_a_waiter_that_wakes_during_an_outage(self, proxy, name):
        limiter = RateLimiter(name, "1/1.1s")
        limiter.acquire()
        ended: list[object] = []

        def wait() -> None:
            try:
                ended.append(limiter.acquire())
            except BackendUnavailable as error:
                ended.append(error)

        thread = threading.Thread(target=wait)
        thread.start()
        eventually(lambda: limiter.usage().windows[0].ahead == 1)
        proxy.refuse()
        thread.join(30)
        assert isinstance(ended[0], BackendUnavailable)


class TestRestart:
    def test_loses_at_most_a_window(self, configure, name):
        """Up to twice the limit in the window of the restart, never more."""
        with RedisServer() as server:
            configure(LOCATION=server.url)
            calls = []
            limiter = RateLimiter(name, "10/0.4s", margin=0.1)
            for turn in range(26):
                limiter.acquire()
                calls.append((time.monotonic(), 1))
                if turn == 14:
                    server.kill()
                    server.start()
        assert most_within(calls, 0.4) <= 20
        first = calls[15][0]
        assert most_within([one for one in calls if one[0] >= first], 0.4) <= 10
