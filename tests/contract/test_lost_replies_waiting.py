"""Replies, pushes and connections are lost while somebody waits: no place is kept for the dead."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
import redis

from django_tasklock import (
    TaskLock,
)
from django_tasklock.backends.redis import RedisBackend
from django_tasklock.types import Released
from tests.support.proxy import Proxy, Request, scripts
from tests.support.stores import an_ask, eventually, granted, new_token
from tests.support.twins import TWINS, call, conflict, token_in

pytest_plugins = ["tests.support.redis_fixtures"]
pytestmark = pytest.mark.redis

ACQUIRE, RELEASE = map(scripts, ("acquire", "release"))
STRANGER = new_token()
Store = redis.Redis  # bytes in and out


def arguments(request: Request) -> int:
    """How many a script is told, beside its keys."""
    return len(request) - 3 - int(request[2])


def enqueue(request: Request) -> bool:
    """A waiter's acquire, once it listens: it carries its place in the queue."""
    return ACQUIRE(request) and arguments(request) == 8 and request[-1] != b""


def leave(request: Request) -> bool:
    """A waiter's good-bye: a release that also gives up its place."""
    return RELEASE(request) and arguments(request) == 2


def waiting(store: Store, name: str) -> int:
    """How many wait."""
    return int(store.zcard(f"task_lock#queue:{name}"))


def listeners(store: Store, name: str) -> int:
    """How many listen where the first of the queue is to be told."""
    (token,) = store.zrange(f"task_lock#queue:{name}", 0, 0)
    ((_, count),) = store.pubsub_numsub(store.hget(f"task_lock#waiters:{name}", token).split()[1])
    return int(count)


@TWINS
def test_a_waiter_keeps_one_place_after_a_lost_reply(
    proxy: Proxy, store: Store, stranger: RedisBackend, name: str, way: str
) -> None:
    granted(stranger.acquire(an_ask(name, STRANGER)))
    lost = proxy.lose_reply(enqueue)
    lock = TaskLock(name)
    with ThreadPoolExecutor(1) as pool:
        taken = pool.submit(call, way, lock, "acquire", blocking_timeout=30)
        eventually(lambda: lost.met)
        eventually(lambda: waiting(store, name) == 1)
        assert stranger.release(name, STRANGER) is Released.RELEASED
        assert taken.result(10) is True
        assert token_in(store, name) == lock.token
        assert waiting(store, name) == 0
        assert pool.submit(call, way, lock, "release").result(10) is Released.RELEASED


@TWINS
def test_a_waiter_gets_the_lock_although_the_notification_was_lost(
    proxy: Proxy, store: Store, stranger: RedisBackend, name: str, way: str
) -> None:
    """Gold standard 8.27: the lock was handed over to it, and nobody could tell it so."""
    granted(stranger.acquire(an_ask(name, STRANGER)))
    lock = TaskLock(name)
    with ThreadPoolExecutor(1) as pool:
        taken = pool.submit(call, way, lock, "acquire", blocking_timeout=30)
        eventually(lambda: waiting(store, name) == 1)
        proxy.mute = True
        stranger.release(name, STRANGER)
        assert taken.result(10) is True
        assert token_in(store, name) == lock.token
        assert store.pttl(f"task_lock:{name}") > 30_000, "the short lease was not made a whole lease"
        assert pool.submit(call, way, lock, "release").result(10) is Released.RELEASED


@TWINS
def test_a_waiter_that_listens_again_keeps_its_place(
    proxy: Proxy, store: Store, stranger: RedisBackend, name: str, way: str
) -> None:
    """Its connection was cut; whoever came later does not get in before it."""
    granted(stranger.acquire(an_ask(name, STRANGER)))
    with ThreadPoolExecutor(1) as pool:
        taken = pool.submit(call, way, TaskLock(name), "acquire", blocking_timeout=30)
        eventually(lambda: waiting(store, name) == 1)
        entries = store.zrange(f"task_lock#queue:{name}", 0, -1, withscores=True)
        before = len(proxy.requests)
        proxy.cut()
        eventually(lambda: any(request[0] == b"SUBSCRIBE" for request in proxy.requests[before:]))
        eventually(lambda: listeners(store, name) == 1)
        assert store.zrange(f"task_lock#queue:{name}", 0, -1, withscores=True) == entries
        stranger.release(name, STRANGER)
        assert taken.result(10) is True


@TWINS
@pytest.mark.parametrize("times", [1, 2])
def test_giving_up_is_told_after_lost_replies(
    proxy: Proxy, store: Store, stranger: RedisBackend, name: str, way: str, times: int
) -> None:
    """Busy is busy: that good-bye was not heard does not make it "the store is down"."""
    granted(stranger.acquire(an_ask(name, STRANGER)))
    lost = proxy.lose_reply(leave, times=times)
    lock = TaskLock(name)
    assert conflict(way, lock, 0.2).time_left is not None
    assert len(lost.met) == times
    assert waiting(store, name) == 0
    assert token_in(store, name) == STRANGER


@TWINS
def test_a_queue_entry_that_could_not_be_removed_does_not_delay_others(
    proxy: Proxy, store: Store, stranger: RedisBackend, name: str, way: str
) -> None:
    """Gold standard 8.28: whoever is next in the queue and does not listen any more is passed over."""
    granted(stranger.acquire(an_ask(name, STRANGER)))
    proxy.fault(leave, times=2, unsent=True)
    assert call(way, TaskLock(name), "acquire", blocking_timeout=0.2) is False
    assert waiting(store, name) == 1, "the place is gone: the test shows nothing"
    eventually(lambda: listeners(store, name) == 0)  # the server hears of the closed channel in its own time
    assert stranger.release(name, STRANGER) is Released.RELEASED
    granted(stranger.acquire(an_ask(name)))


@TWINS
def test_a_waiter_that_fails_leaves_no_key(
    proxy: Proxy, store: Store, stranger: RedisBackend, name: str, way: str
) -> None:
    """The holder lets go, the lock is the waiter's, and it does not hear of that: it asks again, and goes."""
    granted(stranger.acquire(an_ask(name, STRANGER)))
    proxy.lose_reply(enqueue)
    lost = proxy.lose_reply(enqueue, then=lambda: stranger.release(name, STRANGER))
    lock = TaskLock(name)
    assert call(way, lock, "acquire", blocking_timeout=30) is True
    assert lost.met
    assert token_in(store, name) == lock.token
    assert call(way, lock, "release") is Released.RELEASED
    eventually(lambda: not store.exists(f"task_lock:{name}"))
