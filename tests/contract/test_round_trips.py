"""One verb, one round trip."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import redis

from django_tasklock import (
    RateLimiter,
    TaskLock,
    TaskLockAcquireError,
)
from django_tasklock.backends import get_backend
from django_tasklock.backends.redis import RedisBackend
from django_tasklock.locks.heartbeat import Heartbeat
from django_tasklock.locks.lease import Lease
from django_tasklock.types import Released, Renewal
from tests.support.proxy import Proxy
from tests.support.redis_server import RedisServer
from tests.support.stores import an_ask, eventually, granted, new_token
from tests.support.twins import conflict

pytest_plugins = ["tests.support.redis_fixtures"]
pytestmark = pytest.mark.redis


@pytest.fixture
def known(proxy: Proxy, stranger: RedisBackend, name: str) -> Proxy:
    """A proxy, before a server that knows every script."""
    ask = an_ask(f"{name}:known")
    stranger.acquire(ask)
    stranger.extend(ask.name, ask.token, 1000, 1000)
    stranger.renew([Renewal(ask.name, ask.token, 1000)])
    stranger.get(ask.name)
    stranger.records()
    stranger.remove(ask.name)
    stranger.release(ask.name, ask.token)
    return proxy


def requests(proxy: Proxy, act: Callable[[], object]) -> list[bytes]:
    """What was sent for that, by command."""
    with proxy.recorded() as sent:
        act()
    return [request[0] for request in sent]


def test_the_verbs_of_a_holder(known: Proxy, name: str) -> None:
    lock = TaskLock(name)
    for verb in (lock.acquire, lock.extend, lock.info, lock.release):
        assert requests(known, verb) == [b"EVALSHA"], verb


def test_busy(known: Proxy, store: redis.Redis, name: str) -> None:
    """Who has it and for how long comes with the refusal, and who does not wait leaves nothing behind."""
    granted(get_backend().acquire(an_ask(name)))
    before = set(store.keys(f"*{name}*"))
    told: list[TaskLockAcquireError] = []
    assert requests(known, lambda: told.append(conflict("sync", TaskLock(name)))) == [b"EVALSHA"]
    assert told[0].holder is not None
    assert set(store.keys(f"*{name}*")) == before


def test_a_call_within_its_rate(known: Proxy, name: str) -> None:
    limiter = RateLimiter(name, "1000/m")
    limiter.acquire()
    assert requests(known, limiter.acquire) == [b"EVALSHA"]


def test_a_process_that_waits_again_gets_the_lock_in_one_round_trip(
    known: Proxy, stranger: RedisBackend, store: redis.Redis, name: str
) -> None:
    """And gives it back in another: the first time one has to listen, the next time it does already."""

    def turn() -> None:
        token, lock = new_token(), TaskLock(name, blocking_timeout=30)
        granted(stranger.acquire(an_ask(name, token)))
        with ThreadPoolExecutor(1) as pool:
            waits = pool.submit(lock.acquire)
            eventually(lambda: store.zcard(f"task_lock#queue:{name}") == 1)
            stranger.release(name, token)
            assert waits.result(30)
            assert pool.submit(lock.release).result(30) is Released.RELEASED

    turn()
    assert requests(known, turn) == [b"EVALSHA", b"EVALSHA"]


def test_renewing_more_leaves_room_for_others(known: Proxy, name: str) -> None:
    """In parts: Redis serves nobody else while a script runs."""
    held = [Lease(get_backend(), f"{name}:{index}", 1000, None) for index in range(250)]
    beat = Heartbeat()
    assert requests(known, lambda: beat.renew(get_backend(), held)) == [b"EVALSHA"] * 3
    assert beat.renew(get_backend(), held) == [(hold, hold.lost) for hold in held]
    assert requests(known, lambda: beat.renew(get_backend(), [])) == []


def test_as_the_server_counts(configure: Any, redis_server: RedisServer, name: str) -> None:
    """Nothing beside the verbs: no PING, no WATCH, no second connection."""
    configure(LOCATION=redis_server.url)

    def pairs(count: int) -> None:
        for _ in range(count):
            with TaskLock(name, lease=None):
                pass

    pairs(1)
    with redis.Redis.from_url(redis_server.url) as client:
        before = client.info("stats")
        pairs(100)
        after = client.info("stats")
    assert after["total_connections_received"] == before["total_connections_received"]
    read = "total_reads_processed"
    assert after[read] - before[read] <= 2 * 100 + 1  # and the asking itself
