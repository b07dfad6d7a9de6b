"""What a lock costs: one trip to the server for each verb, counted by a server of the test's own."""

from __future__ import annotations

from typing import Any

import pytest
import redis

from django_tasklock import TaskLock, rate_limited
from django_tasklock.backends import get_backend
from tests.support.redis_server import RedisServer
from tests.support.stores import an_ask, granted
from tests.support.twins import TWINS, call

pytest_plugins = ["tests.support.redis_fixtures"]
pytestmark = [pytest.mark.redis, pytest.mark.django_db]


def trips(client: redis.Redis) -> int:
    """How many scripts were called since the last reset."""
    return int(client.info("commandstats").get("cmdstat_evalsha", {}).get("calls", 0))


@TWINS
@pytest.mark.parametrize("waits", [None, 30], ids=["at once", "waiting"])
def test_a_free_lock(configure: Any, redis_server: RedisServer, name: str, waits: float | None, way: str) -> None:
    """Also for who would wait."""
    configure(LOCATION=redis_server.url)
    lock = TaskLock(name, blocking_timeout=waits)
    with redis.Redis.from_url(redis_server.url) as client:
        for loaded in (False, True):  # the first round connects, and loads the scripts
            for verb in ("acquire", "extend", "release"):
                client.config_resetstat()
                assert call(way, lock, verb)
                assert not loaded or trips(client) == 1, verb


@TWINS
def test_a_busy_lock_is_left_as_it_is(configure: Any, redis_server: RedisServer, name: str, way: str) -> None:
    """Whoever does not wait leaves nothing behind where nothing is counted: no key, no write."""
    configure(LOCATION=redis_server.url, METRICS=False)
    granted(get_backend().acquire(an_ask(name)))
    lock = TaskLock(name)
    call(way, lock, "acquire")  # connects, and loads the script
    with redis.Redis.from_url(redis_server.url) as client:
        keys = set(client.keys())
        client.config_resetstat()
        assert call(way, lock, "acquire") is False
        assert trips(client) == 1
        assert set(client.keys()) == keys


def test_a_call_within_its_rate(configure: Any, redis_server: RedisServer, name: str) -> None:
    configure(LOCATION=redis_server.url)

    @rate_limited(name, "1000/m")
    def nothing() -> None: ...

    nothing()
    with redis.Redis.from_url(redis_server.url) as client:
        client.config_resetstat()
        nothing()
        assert trips(client) == 1
