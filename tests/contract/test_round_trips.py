"""One verb, one round trip."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
import redis

from django_tasklock import (
    TaskLock,
    TaskLockAcquireError,
    rate_limited,
)
from django_tasklock.backends import get_backend
from django_tasklock.backends.redis import RedisBackend
from django_tasklock.locks.heartbeat import Heartbeat
from django_tasklock.locks.lease import Lease
from django_tasklock.types import Released, Renewal
from tests.support.proxy import Proxy
from tests.support.redis_server import RedisServer
from tests.support.stores import an_ask, eventually, granted, new_token
from tests.support.twins import TWINS, call, conflict

pytest_plugins = ["tests.support.redis_fixtures"]
pytestmark = pytest.mark.redis
RELEASED = Released.RELEASED


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


@TWINS
def test_the_verbs_of_a_holder(known: Proxy, name: str, way: str) -> None:
    lock = TaskLock(name)
    for verb in ("acquire", "extend", "info", "release"):
        assert requests(known, lambda verb=verb: call(way, lock, verb)) == [b"EVALSHA"], verb


@TWINS
def test_busy(known: Proxy, store: redis.Redis, name: str, way: str) -> None:
    """Who has it and for how long comes with the refusal, and who does not wait leaves nothing behind."""
    granted(get_backend().acquire(an_ask(name)))
    before = set(store.keys(f"*{name}*"))
    lock = TaskLock(name)
    told: list[TaskLockAcquireError] = []
    assert requests(known, lambda: told.append(conflict(way, lock))) == [b"EVALSHA"]
    assert told[0].holder is not None
    assert set(store.keys(f"*{name}*")) == before


def test_a_call_within_its_rate(known: Proxy, name: str) -> None:
    @rate_limited(name, "1000/m")
    def nothing() -> None: ...

    nothing()
    assert requests(known, nothing) == [b"EVALSHA"]


@TWINS
def test_waiting_for_a_free_lock_costs_no_more(known: Proxy, name: str, way: str) -> None:
    lock = TaskLock(name, blocking_timeout=30)
    call(way, lock, "acquire")  # the first one that waits lets the process listen
    call(way, lock, "release")
    eventually(lambda: any(request[0] == b"SUBSCRIBE" for request in known.requests))
    assert requests(known, lambda: call(way, lock, "acquire")) == [b"EVALSHA"]
    assert call(way, lock, "release") is Released.RELEASED


@pytest.mark.parametrize("way", ["thread", "coroutine"])
def test_a_process_that_waits_again_gets_the_lock_in_one_round_trip(
    known: Proxy, stranger: RedisBackend, store: redis.Redis, name: str, way: str
) -> None:
    """And gives it back in another: the first time one has to listen, the next time it does already."""

    async def turn() -> None:
        token, lock = new_token(), TaskLock(name, blocking_timeout=30)
        granted(stranger.acquire(an_ask(name, token)))
        asking = lock.aacquire() if way == "coroutine" else asyncio.to_thread(lock.acquire)
        waits = asyncio.ensure_future(asking)
        await asyncio.to_thread(eventually, lambda: store.zcard(f"task_lock#queue:{name}") == 1)
        stranger.release(name, token)
        assert await waits
        assert (await lock.arelease() if way == "coroutine" else await asyncio.to_thread(lock.release)) is RELEASED

    async def main() -> list[bytes]:
        await turn()
        with known.recorded() as sent:
            await turn()
        return [request[0] for request in sent]

    assert asyncio.run(main()) == [b"EVALSHA", b"EVALSHA"]


def test_renewing_a_hundred(known: Proxy, store: redis.Redis, name: str) -> None:
    backend = get_backend()
    asks = [an_ask(f"{name}:{index}", ttl=5_000) for index in range(100)]
    for ask in asks:
        granted(backend.acquire(ask))
    batch = [Renewal(ask.name, ask.token, 60_000) for ask in asks]
    batch[17] = batch[17]._replace(token=new_token())
    assert requests(known, lambda: backend.renew(batch)) == [b"EVALSHA"]
    assert [bool(kept) for kept in backend.renew(batch)] == [index != 17 for index in range(100)]
    assert all((store.pttl(f"task_lock:{ask.name}") > 30_000) is (index != 17) for index, ask in enumerate(asks))
    for ask in asks:
        backend.release(ask.name, ask.token)


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
