"""What a lock costs the server, in commands and bytes: counted by a server of the test's own."""

from __future__ import annotations

from typing import Any

import pytest
import redis

from django_tasklock import TaskLock
from django_tasklock.backends import get_backend
from django_tasklock.operations import get_lock
from tests.support.redis_server import RedisServer
from tests.support.stores import an_ask, granted
from tests.support.twins import TWINS, call

pytest_plugins = ["tests.support.redis_fixtures"]
pytestmark = [pytest.mark.redis, pytest.mark.django_db]

BUSY = {"evalsha": 1, "time": 1, "zadd": 1, "get": 1, "pttl": 1}  # "add, if it is not there" changes nothing
ACQUIRE = {"evalsha": 1, "time": 1, "zadd": 1, "set": 2}  # fence, key
RELEASE = {"evalsha": 1, "get": 1, "del": 1, "zpopmin": 1, "zrem": 1}
EXTEND = {"evalsha": 1, "get": 1, "time": 1, "pexpire": 1, "set": 1, "zadd": 1}
INSIDE = 10  # commands in the scripts of an uncontended acquire + release
COUNTED = {  # what more they take that are counted: the value is kept where it outlives the lock
    "acquire": ACQUIRE | {"set": 3},
    "extend": EXTEND,
    "release": RELEASE | {"hincrby": 1},
}
BYTES = 450  # of a held lock and its holder
COPY = 350  # of what is kept of one that is counted


def counted(client: redis.Redis) -> dict[str, int]:
    """How often each command was called, without those of the counting itself and of making a connection."""
    found = client.info("commandstats").items()
    calls = {what.removeprefix("cmdstat_"): stats["calls"] for what, stats in found}
    return {
        what: number for what, number in calls.items() if not what.startswith(("config", "info", "client", "hello"))
    }


@TWINS
@pytest.mark.parametrize("waits", [None, 30], ids=["at once", "waiting"])
@pytest.mark.parametrize("metrics", [False, True], ids=["not counted", "counted"])
def test_a_free_lock(
    configure: Any, redis_server: RedisServer, name: str, waits: float | None, metrics: bool, way: str
) -> None:
    """Also for who would wait. One grant in 64 looks for what lapsed long ago as well: hence the three rounds."""
    configure(LOCATION=redis_server.url, METRICS=metrics)
    lock = TaskLock(name, blocking_timeout=waits)
    costs = COUNTED if metrics else {"acquire": ACQUIRE, "extend": EXTEND, "release": RELEASE}
    with redis.Redis.from_url(redis_server.url) as client:
        for _ in range(4):  # the first connects, and loads the scripts
            told = {}
            for verb in costs:
                client.config_resetstat()
                assert call(way, lock, verb)
                told[verb] = counted(client)
            if told == costs:
                break
        assert told == costs
    assert sum((*costs["acquire"].values(), *costs["release"].values())) - 2 <= INSIDE


def test_what_a_held_lock_takes(configure: Any, redis_server: RedisServer) -> None:
    """Its key, its value with a holder, and its entry in the only index."""
    configure(LOCATION=redis_server.url)
    locks = [TaskLock(f"video:{number}") for number in range(200)]
    for lock in locks:
        assert lock.acquire()
    with redis.Redis.from_url(redis_server.url) as client:
        keys = [key for key in client.scan_iter() if key.startswith(b"task_lock:")]
        assert len(keys) == len(locks)
        copies = [key for key in client.scan_iter() if key.startswith(b"task_lock#open:")]
        assert len(copies) == len(locks)
        others = {key for key in client.scan_iter() if not key.startswith(b"task_lock#counts:")} - {*keys, *copies}
        assert others == {b"task_lock#index", b"task_lock#fence"}
        assert sum(client.memory_usage(key, samples=0) or 0 for key in copies) / len(locks) <= COPY
        taken = sum(client.memory_usage(key, samples=0) or 0 for key in [*keys, "task_lock#index"])
        assert taken / len(locks) <= BYTES
    for lock in locks:
        lock.release()


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
        assert counted(client) == BUSY
        assert set(client.keys()) == keys


@TWINS
def test_what_an_earlier_version_noted_is_left_to_lapse(
    configure: Any, redis_server: RedisServer, name: str, way: str
) -> None:
    """In a rolling deploy it still writes who was refused, for an hour; here nothing reads it or makes it last."""
    configure(LOCATION=redis_server.url)
    granted(get_backend().acquire(an_ask(name)))
    with redis.Redis.from_url(redis_server.url) as client:
        trail = f"task_lock#refused:{name}"
        client.lpush(trail, '1790000000000 {"host":"web","pid":7}')
        client.pexpire(trail, 1000)
        assert call(way, TaskLock(name), "acquire") is False
        assert client.llen(trail) == 1
        assert 0 < client.pttl(trail) <= 1000
    assert get_lock(name).lock is not None
    assert get_backend().remove(name) is not None
    assert get_lock(name).lock is None
