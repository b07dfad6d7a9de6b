"""The fence: a number that only grows, whatever happens to the store's data."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any

import pytest
import redis

from django_tasklock import TaskLock, TaskLockError, force_release_task_lock
from django_tasklock.backends import get_backend
from tests.support.redis_server import RedisServer
from tests.support.stores import an_ask, end_lease, eventually, granted

pytest_plugins = ["tests.support.redis_fixtures"]
pytestmark = pytest.mark.redis


@pytest.fixture
def server(configure: Any, redis_server: RedisServer) -> RedisServer:
    """A Redis of this test's own, used by the locks."""
    configure(LOCATION=redis_server.url)
    return redis_server


@pytest.fixture
def private(server: RedisServer) -> Iterator[redis.Redis]:
    """That Redis, asked directly."""
    with redis.Redis.from_url(server.url) as client:
        yield client


def next_fence(name: str) -> int:
    """The fence of one more holder, who lets go again."""
    with TaskLock(name) as lock:
        return lock.fence


def grows(numbers: list[int]) -> bool:
    """Whether each is greater than the one before."""
    return all(earlier < later for earlier, later in pairwise(numbers))


def test_ahead_of_the_clock_it_counts_one_by_one(server: RedisServer, private: redis.Redis, name: str) -> None:
    """The clock was set back. No digit is lost: Lua's numbers are doubles, written with 14 digits unless told."""
    private.set("task_lock#fence", int(time.time() + 3600) * 10**6)
    first, *others = (next_fence(name) for _ in range(200))
    assert others == [first + step for step in range(1, 200)]


def test_it_is_the_same_everywhere(server: RedisServer, private: redis.Redis, name: str) -> None:
    """On the lock, in the key, in the answer to "who has it" and to a second asking with the same token."""
    lock = TaskLock(name)
    lock.acquire()
    assert json.loads(private.get(f"task_lock:{name}"))["fence"] == lock.fence
    assert lock.info().fence == lock.fence
    assert granted(get_backend().acquire(an_ask(name, lock.token))).fence == lock.fence
    before = lock.fence
    assert lock.extend()
    assert lock.fence == before == lock.info().fence
    lock.release()


def lapse(name: str, store: redis.Redis, server: RedisServer) -> None:
    store.pexpire(f"task_lock:{name}", 1)
    eventually(lambda: not store.exists(f"task_lock:{name}"))


def force(name: str, store: redis.Redis, server: RedisServer) -> None:
    assert force_release_task_lock(name)


def delete(name: str, store: redis.Redis, server: RedisServer) -> None:
    store.delete(f"task_lock:{name}")


def flush(name: str, store: redis.Redis, server: RedisServer) -> None:
    store.flushall()


def evict_counter(name: str, store: redis.Redis, server: RedisServer) -> None:
    store.delete("task_lock#fence", f"task_lock:{name}")


def set_counter_back(name: str, store: redis.Redis, server: RedisServer) -> None:
    store.set("task_lock#fence", 17)
    store.delete(f"task_lock:{name}")


def restore_a_snapshot(name: str, store: redis.Redis, server: RedisServer) -> None:
    """The counter as it was a moment ago: behind what was handed out since, as after a failover to a late replica."""
    store.set("task_lock#fence", int(store.get("task_lock#fence") or 0) - 100)
    store.delete(f"task_lock:{name}")


def crash(name: str, store: redis.Redis, server: RedisServer) -> None:
    server.kill()
    server.start()


EVENTS = [lapse, force, delete, flush, evict_counter, set_counter_back, restore_a_snapshot, crash]


@pytest.mark.parametrize("event", EVENTS, ids=lambda event: event.__name__)
def test_it_grows_whatever_ends_the_lock(
    server: RedisServer, private: redis.Redis, name: str, event: Callable[..., None]
) -> None:
    """Gold standard 8.39: the counter must not start again with the data."""
    fences = []
    for _ in range(3):
        lock = TaskLock(name, lease=None, timeout=60)
        assert lock.acquire()
        fences.append(lock.fence)
        event(name, private, server)
        assert not lock.release()
    assert grows(fences)


@pytest.mark.parametrize("way", ["behind the clock", "ahead of the clock"])
def test_that_of_permits_grows_too(server: RedisServer, private: redis.Redis, name: str, way: str) -> None:
    """Whether the counter is one of an older snapshot, or the clock was set back."""
    permits, fences = get_backend().permits, []
    if way == "ahead of the clock":
        private.set("task_lock#fence", int(time.time() + 3600) * 10**6)
    for _ in range(3):
        fences.append(granted(permits.acquire(an_ask(name)._replace(limit=5))).fence)
        if way == "behind the clock":
            private.decrby("task_lock#fence", 100)
    assert grows(fences)


def test_flushes_in_quick_succession(server: RedisServer, private: redis.Redis, name: str) -> None:
    """Seeded by the clock in microseconds, it is ahead of what was handed out since the last seed."""
    fences = []
    for _ in range(50):
        fences += [next_fence(name) for _ in range(3)]
        private.flushall()
    assert grows(fences)


def test_a_stale_holder_keeps_its_own_fence(server: RedisServer, private: redis.Redis, another: Any, name: str) -> None:
    """Gold standard 8.39: after the take-over the old holder's number is still the old one."""
    stale = TaskLock(name, lease=None, timeout=60)
    assert stale.acquire()
    own = stale.fence
    end_lease(stale)
    newer = granted(another(server.url).acquire(an_ask(name)))
    assert stale.fence == own < newer.fence
    assert not stale.release()
    with pytest.raises(TaskLockError, match="acquire"):
        _ = stale.fence
    assert get_backend().get(name).fence == newer.fence
