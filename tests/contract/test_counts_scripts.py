"""How the scripts keep what they count: hours that end, and what earlier versions have counted."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest
import redis

from django_tasklock.backends.redis import RedisBackend
from django_tasklock.backends.redis.metrics import AT_ONCE
from tests.contract.test_counts import KIND, ask, numbers
from tests.support import environment
from tests.support.stores import clear, granted, make

pytestmark = pytest.mark.redis
HOUR = 3_600_000
RUNNING = "task_lock#counts:now"


@pytest.fixture
def backend() -> Iterator[RedisBackend]:
    clear("redis")
    backend: Any = make("redis")
    yield backend
    backend.close_idle()
    backend.close()


@pytest.fixture
def client(backend: RedisBackend) -> Iterator[redis.Redis]:
    with redis.Redis.from_url(os.environ[environment.REDIS]) as client:
        yield client


def pair(backend: RedisBackend, name: str = "video:1") -> None:
    mine = ask(name)
    granted(backend.acquire(mine))
    backend.release(name, mine.token)


def this_hour(client: redis.Redis) -> int:
    seconds, _ = client.time()
    return int(seconds) // 3600


def set_back(client: redis.Redis, hours: int) -> None:
    """Make the running counts those of an earlier hour."""
    client.pexpireat(RUNNING, 2 * (this_hour(client) - hours) * HOUR)


def by_hour(backend: RedisBackend) -> dict[int, int]:
    """Acquisitions of each hour."""
    key = ("acquired", KIND)
    return {one.at // 3600: one.counted[key].number for one in backend.metrics.hours(24) if key in one.counted}


@pytest.mark.parametrize("first", ["pair", "conflict", "read", "add"])
def test_an_hour_that_is_over(backend: RedisBackend, client: redis.Redis, first: str) -> None:
    """Whoever counts next lets the totals have it; also after a flush of nothing but the totals it is there."""
    pair(backend)
    set_back(client, 2)
    assert by_hour(backend) == {this_hour(client) - 2: 1}
    if first == "conflict":
        held = ask("video:2", None)
        granted(backend.acquire(held))
        backend.acquire(ask("video:2"))
    elif first == "add":
        backend.metrics.add("lost", KIND)
    pair(backend)
    pair(backend)
    assert by_hour(backend) == {this_hour(client) - 2: 1, this_hour(client): 2}
    assert numbers(backend)["acquired"] == numbers(backend)["released"] == 3
    assert client.hlen("task_lock#totals")


def test_a_lock_held_for_hours(backend: RedisBackend, client: redis.Redis) -> None:
    """Its acquisition is counted in the hour when it was, whoever counts it; its release in that of the release."""
    mine = ask("video:1", hold=5 * HOUR, ttl=5 * HOUR)
    granted(backend.acquire(mine))
    value = client.get("task_lock:video:1")
    at = int(value.partition(b'"at":')[2].partition(b",")[0])
    earlier = value.replace(b'"at":%d' % at, b'"at":%d' % (at - 3 * HOUR))
    for key in ("task_lock:video:1", "task_lock#open:video:1"):
        client.set(key, earlier, keepttl=True)
    backend.release("video:1", mine.token)
    assert by_hour(backend) == {at // HOUR - 3: 1}
    assert numbers(backend) == {"acquired": 1, "released": 1}
    assert backend.metrics.totals()["released:11", KIND].amount >= 3 * HOUR


def test_more_locks_than_one_script_looks_at(backend: RedisBackend, client: redis.Redis) -> None:
    names = [f"video:{number}" for number in range(AT_ONCE + 100)]
    token = ask("video:0")
    for start in range(0, len(names), 100):
        granted(backend.acquire_all(names[start : start + 100], token))
    assert numbers(backend) == {"acquired": len(names)}
    assert not client.keys("task_lock#open:*")
    for start in range(0, len(names), 100):
        backend.release_all(names[start : start + 100], token.token)
    assert numbers(backend) == {"acquired": len(names), "released": len(names)}
    assert not client.keys("task_lock#held:*")


def test_what_earlier_versions_have_counted(backend: RedisBackend, client: redis.Redis) -> None:
    """Hours of theirs that are over and the one that runs, what is in the totals, and a lock that one of them holds."""
    now = this_hour(client)
    for hour, number in ((now - 1, 5), (now, 7)):
        client.sadd("task_lock#hours", hour)
        client.hset(f"task_lock#counts:{hour}", mapping={f"acquired|{KIND}": number, "about": "counts"})
    client.hset(f"task_lock#counts:{now}", f"released:2|{KIND}", 4_000_000_000_200)
    client.hset("task_lock#totals", f"acquired|{KIND}", 11)
    mine = ask("video:1")
    granted(backend.acquire(mine))
    client.rename("task_lock#open:video:1", "task_lock#held:video:1")  # as they keep it, having counted it
    client.hincrby(f"task_lock#counts:{now}", f"acquired|{KIND}", 1)
    assert numbers(backend) == {"acquired": 24, "released": 4}
    backend.release("video:1", mine.token)
    pair(backend)
    assert numbers(backend) == {"acquired": 25, "released": 6}
    assert by_hour(backend) == {now - 1: 5, now: 9}
    assert client.smembers("task_lock#hours") == {b"now", str(now).encode()}
    assert not client.exists("task_lock#held:video:1")


def test_a_copy_that_was_evicted(backend: RedisBackend, client: redis.Redis) -> None:
    """The lock is there, so that its end counts its acquisition, too."""
    mine = ask("video:1")
    granted(backend.acquire(mine))
    client.delete("task_lock#open:video:1")
    backend.release("video:1", mine.token)
    assert numbers(backend) == {"acquired": 1, "released": 1}


def test_counts_that_are_something_elses(backend: RedisBackend, client: redis.Redis) -> None:
    client.set(RUNNING, "mine")
    pair(backend)
    backend.acquire(ask("video:1"))
    backend.acquire(ask("video:1"))
    assert client.get(RUNNING) == b"mine"
