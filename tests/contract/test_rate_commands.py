"""What one call at a rate limit costs the server: counted by a server of the test's own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import redis

from django_tasklock import RateLimiter, rate_limited
from tests.support.redis_server import RedisServer

pytest_plugins = ["tests.support.redis_fixtures"]
pytestmark = pytest.mark.redis

ONE_CALL = {"evalsha": 1, "time": 1, "hmget": 1, "lpush": 1, "hset": 1}
TRIES = 50  # once a second a call looks at more: that is not the one to count


def acquire(name: str) -> Callable[[], object]:
    return RateLimiter(name, "1000/m").acquire


def try_acquire(name: str) -> Callable[[], object]:
    return RateLimiter(name, "1000/m").try_acquire


def decorated(name: str) -> Callable[[], object]:
    @rate_limited(name, "1000/m")
    def nothing() -> None: ...

    return nothing


@pytest.mark.parametrize("made", [acquire, try_acquire, decorated])
@pytest.mark.parametrize("more", [{}, {"hincrby": 1}], ids=["not counted", "counted"])
def test_a_call_that_may_go_at_once(
    configure: Any,
    redis_server: RedisServer,
    name: str,
    made: Callable[[str], Callable[[], object]],
    more: dict[str, int],
) -> None:
    configure(LOCATION=redis_server.url, METRICS=bool(more))
    wanted = ONE_CALL | more
    one = made(name)
    one()
    found: list[dict[str, int]] = []
    with redis.Redis.from_url(redis_server.url) as client:
        while wanted not in found and len(found) < TRIES:
            client.config_resetstat()
            one()
            counted = client.info("commandstats")
            found.append(
                {
                    what.removeprefix("cmdstat_"): stats["calls"]
                    for what, stats in counted.items()
                    if not what.startswith("cmdstat_config")
                }
            )
    assert wanted in found
