"""What people, other programs and time do to our keys: the store heals, and nothing foreign is overwritten."""

from __future__ import annotations

import json
import re
from concurrent.futures import ThreadPoolExecutor

import pytest
import redis

from django_tasklock import (
    BackendUnavailable,
    TaskLock,
    force_release_task_lock,
    get_lock_holder,
    get_lock_info,
    get_lock_ttl,
    is_task_locked,
    list_all_task_locks,
)
from django_tasklock.backends import get_backend
from django_tasklock.backends.redis import RedisBackend
from django_tasklock.types import Released, Renewal, RenewalResult
from tests.support.stores import an_ask, eventually, granted
from tests.support.twins import conflict, token_in

pytest_plugins = ["tests.support.redis_fixtures"]
pytestmark = pytest.mark.redis

INDEX = "task_lock#index"


@pytest.fixture
def key(name: str) -> str:
    """The lock's key, as one types it into redis-cli."""
    return f"task_lock:{name}"


def listed() -> list[str]:
    """The names of all held locks."""
    return [info.name for info in list_all_task_locks()]


# --- redis-cli


def test_get_and_ttl_say_what_people_expect(store: redis.Redis, name: str, key: str) -> None:
    with TaskLock(name, timeout=90, lease=30) as lock:
        assert store.type(key) == b"string"
        assert 0 < store.ttl(key) <= 30
        value = json.loads(store.get(key))
        assert list(value) == ["token", "holder", "at", "fence", "until"]
        assert value["token"] == lock.token
        assert re.fullmatch("[0-9a-f]{32}", value["token"])
        assert value["until"] - value["at"] == 90_000
        assert value["holder"].keys() >= {"host", "pid", "boot"}
    assert store.get(key) is None
    assert store.ttl(key) == -2


def test_del_frees_the_lock(store: redis.Redis, name: str, key: str) -> None:
    """Gold standard 8.44: the index heals, the holder is told, and the next one has it."""
    lock = TaskLock(name)
    lock.acquire()
    assert name in listed()
    store.delete(key)
    assert not is_task_locked(name)
    assert name not in listed()
    assert store.zscore(INDEX, key) is None
    next_one = an_ask(name)
    granted(get_backend().acquire(next_one))
    assert lock.release() is Released.NOT_YOURS
    assert get_backend().release(name, next_one.token) is Released.RELEASED


def test_del_wakes_a_waiter_that_sleeps(store: redis.Redis, stranger: RedisBackend, name: str, key: str) -> None:
    """Nobody publishes that; whoever waits looks once a second by itself."""
    granted(stranger.acquire(an_ask(name)))
    lock = TaskLock(name)
    with ThreadPoolExecutor(1) as pool:
        waited = pool.submit(lock.acquire, blocking_timeout=30)
        eventually(lambda: store.zcard(f"task_lock#queue:{name}") == 1)
        store.delete(key)
        assert waited.result(5) is True
        assert token_in(store, name) == lock.token
        assert pool.submit(lock.release).result(10) is Released.RELEASED


def test_a_deleted_index_comes_back_with_the_renewals(store: redis.Redis, name: str, key: str) -> None:
    """Gold standard 8.44: the index is a convenience; what holds the lock is its key."""
    with TaskLock(name) as lock:
        store.zrem(INDEX, key)
        assert is_task_locked(name)
        assert name not in listed()
        assert get_backend().renew([Renewal(name, lock.token, 60_000)]) == [RenewalResult.RENEWED]
        assert name in listed()
    assert store.zscore(INDEX, key) is None


def test_queue_entries_of_dead_processes_are_skipped(store: redis.Redis, name: str) -> None:
    """Gold standard 8.28: places left by processes that died are skipped, whoever comes first: by the release, or by
    who finds that the holder died."""
    entries = {f"{index:032d} task_lock#wake:nobody{index} 3000 3600000 {{}}": index for index in range(50)}
    for ends in ("released", "died"):
        store.zadd(f"task_lock#queue:{name}", entries)
        holder = an_ask(name)
        granted(get_backend().acquire(holder))
        if ends == "released":
            assert get_backend().release(name, holder.token)
        else:
            store.delete(f"task_lock:{name}")
            granted(get_backend().acquire(an_ask(name)))
        assert not store.exists(f"task_lock#queue:{name}")


# --- what is not ours

FOREIGN = [b"locked", b"", b"{}", b"\xff\xfe", b'{"token":1,"holder":[],"at":1e999}']


@pytest.mark.parametrize("value", FOREIGN, ids=repr)
def test_a_foreign_value_is_somebody_s_lock(store: redis.Redis, name: str, key: str, value: bytes) -> None:
    """The home-made lock of yesterday's release holds until it expires or is released by force."""
    store.set(key, value, ex=6000)
    lock = TaskLock(name)
    assert conflict("sync", lock).name == name
    assert (store.zscore("task_lock#index", key) or 0) / 1000 > store.time()[0] + 5000  # it is listed until then
    assert lock.acquire(blocking_timeout=0.05) is False
    assert store.get(key) == value
    assert is_task_locked(name)
    assert get_lock_holder(name) == "unknown"
    assert 5000 < (get_lock_ttl(name) or 0) <= 6000
    assert get_backend().release(name, "0" * 32) is Released.NOT_YOURS
    assert get_backend().extend(name, "0" * 32, 1000, 1000) is False
    assert get_backend().renew([Renewal(name, "0" * 32, 1000)]) == [RenewalResult.LOST]
    assert store.get(key) == value
    assert force_release_task_lock(name) is True
    assert lock.acquire() is True
    assert lock.release() is Released.RELEASED


def test_a_key_of_another_type_is_an_error_that_says_so(store: redis.Redis, name: str, key: str) -> None:
    store.rpush(key, "something else")
    with pytest.raises(
        BackendUnavailable, match=r"something else's: delete it, or choose another TASKLOCK\['KEY_PREFIX'\]"
    ):
        TaskLock(name, on_unavailable="raise").acquire()
    assert store.lrange(key, 0, -1) == [b"something else"]
    info = get_lock_info(name)  # that somebody has it, who cannot be told
    assert info is not None
    assert info.fence == 0
    store.delete(key)
