"""A reply is lost after the server executed the request: no orphaned key, no false answer."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable

import pytest
import redis

from django_tasklock import (
    BackendUnavailable,
    TaskLock,
    force_release_task_lock,
)
from django_tasklock.backends import get_backend
from django_tasklock.backends.redis import RedisBackend
from django_tasklock.backends.redis.client import RESTED
from django_tasklock.locks.heartbeat import heartbeat
from django_tasklock.types import Released, Renewal, RenewalResult, monotonic
from tests.support.proxy import Proxy, scripts
from tests.support.stores import an_ask, end_lease, eventually, granted, new_token
from tests.support.twins import TWINS, call, token_in

pytest_plugins = ["tests.support.redis_fixtures"]
pytestmark = pytest.mark.redis

ACQUIRE, RELEASE, EXTEND, RENEW, REMOVE = map(scripts, ("acquire", "release", "extend", "renew", "remove"))
STRANGER = new_token()
Store = redis.Redis  # bytes in and out


# --- acquire


@TWINS
def test_acquire_succeeds_after_a_lost_reply(proxy: Proxy, store: Store, name: str, way: str) -> None:
    """Gold standard 8.5: the resend recognises its own token, and what it says is what is held."""
    lost = proxy.lose_reply(ACQUIRE)
    lock = TaskLock(name)
    assert call(way, lock, "acquire") is True
    assert lost.met, "the reply was not lost: the test shows nothing"
    assert lock.held
    assert token_in(store, name) == lock.token
    assert get_backend().get(name).fence == lock.fence
    assert call(way, lock, "release") is Released.RELEASED
    assert not store.exists(f"task_lock:{name}")


@TWINS
@pytest.mark.parametrize("lease", [60, None])
def test_an_acquire_that_failed_leaves_no_key(
    proxy: Proxy, store: Store, name: str, way: str, lease: int | None
) -> None:
    """Gold standard 8.5: every reply is lost, the caller is told so, and the key goes long before its time."""
    seen: list[str | None] = []
    lost = proxy.lose_reply(ACQUIRE, times=2, then=lambda: seen.append(token_in(store, name)))
    with pytest.raises(BackendUnavailable):
        call(way, TaskLock(name, lease=lease), "acquire")
    assert len(lost.met) == 2
    assert seen[0] is not None, "there was no key: the test shows nothing"
    assert seen[0] == seen[1]
    eventually(lambda: not store.exists(f"task_lock:{name}"))
    assert store.zscore("task_lock#index", f"task_lock:{name}") is None
    eventually(lambda: not heartbeat.reconciler.leftovers)


@TWINS
def test_what_a_failed_acquire_left_is_released_once_the_store_answers(
    proxy: Proxy, store: Store, name: str, way: str, warnings_logged: Callable[[], list[str]]
) -> None:
    proxy.lose_reply(ACQUIRE)
    proxy.lose_reply(ACQUIRE, then=proxy.refuse)
    with pytest.raises(BackendUnavailable):
        call(way, TaskLock(name), "acquire")
    eventually(lambda: any("not released yet" in line for line in warnings_logged()))
    assert store.exists(f"task_lock:{name}")
    proxy.heal()
    eventually(lambda: not store.exists(f"task_lock:{name}"))


@TWINS
def test_a_reply_later_than_the_lease_is_no_lock(proxy: Proxy, store: Store, name: str, way: str) -> None:
    """Gold standard 8.12: what the store granted had ended before its answer came."""
    proxy.fault(ACQUIRE, delay=0.5)
    lock = TaskLock(name, lease=0.3)
    with pytest.raises(BackendUnavailable, match="after the lease was over"):
        call(way, lock, "acquire")
    assert not lock.taken
    eventually(lambda: not store.exists(f"task_lock:{name}"))


@TWINS
def test_the_lease_counts_from_the_request(proxy: Proxy, name: str, way: str) -> None:
    """Gold standard 8.12: the way of the reply is part of the lease."""
    proxy.fault(ACQUIRE, delay=0.4)
    lock = TaskLock(name, lease=None, timeout=30)
    call(way, lock, "acquire")
    assert lock.time_left <= 30 - 0.4
    assert lock.lease.deadline <= monotonic() + 30 - 0.4
    call(way, lock, "release")


def test_a_cancelled_acquire_leaves_no_key(proxy: Proxy, store: Store, name: str) -> None:
    async def scenario() -> bool:
        executed = threading.Event()
        proxy.fault(ACQUIRE, swallow=True, then=executed.set)
        lock = TaskLock(name)
        task = asyncio.create_task(lock.aacquire())
        assert await asyncio.to_thread(executed.wait, 10)
        assert store.exists(f"task_lock:{name}")
        task.cancel()
        try:
            await task
        except asyncio.CancelledError:
            return True
        # We were kept waiting for longer than the answer may take: it was asked again, and answered.
        store.delete(f"task_lock:{name}")
        return False

    assert any(asyncio.run(scenario()) for _ in range(5))
    eventually(lambda: not store.exists(f"task_lock:{name}"))


# --- extend


@TWINS
def test_extend_is_told_after_a_lost_reply(proxy: Proxy, store: Store, name: str, way: str) -> None:
    lock = TaskLock(name, lease=None, timeout=30)
    call(way, lock, "acquire")
    lost = proxy.lose_reply(EXTEND)
    assert call(way, lock, "extend", timeout=300) is True
    assert lost.met
    assert store.pttl(f"task_lock:{name}") > 200_000
    assert lock.time_left > 200
    assert call(way, lock, "release") is Released.RELEASED


# --- release


@TWINS
def test_release_is_told_after_a_lost_reply(proxy: Proxy, store: Store, name: str, way: str) -> None:
    """Gold standard 8.3: not "gone", which it is only because it was released."""
    lock = TaskLock(name)
    call(way, lock, "acquire")
    lost = proxy.lose_reply(RELEASE)
    assert call(way, lock, "release") is Released.RELEASED
    assert lost.met
    assert not store.exists(f"task_lock:{name}")


@TWINS
def test_release_after_a_lost_reply_spares_the_next_holder(
    proxy: Proxy, store: Store, stranger: RedisBackend, name: str, way: str
) -> None:
    """Gold standard 8.3: somebody else takes the lock between the two sendings."""
    lock = TaskLock(name)
    call(way, lock, "acquire")
    lost = proxy.lose_reply(RELEASE, then=lambda: granted(stranger.acquire(an_ask(name, STRANGER))))
    assert call(way, lock, "release") is Released.RELEASED
    assert lost.met
    assert token_in(store, name) == STRANGER
    assert stranger.release(name, STRANGER) is Released.RELEASED


@TWINS
def test_a_lost_reply_does_not_turn_a_lapsed_lock_into_a_released_one(
    proxy: Proxy, store: Store, stranger: RedisBackend, name: str, way: str
) -> None:
    """Gold standard 8.1: A lapsed, B has it; A is told that it was no longer its own, whatever got lost."""
    lock = TaskLock(name, lease=None, timeout=60)
    call(way, lock, "acquire")
    end_lease(lock)
    granted(stranger.acquire(an_ask(name, STRANGER)))
    lost = proxy.lose_reply(RELEASE)
    assert not call(way, lock, "release")
    assert lost.met
    assert token_in(store, name) == STRANGER


@TWINS
def test_a_connection_that_was_closed_meanwhile_is_no_lost_reply(
    proxy: Proxy, stranger: RedisBackend, name: str, way: str
) -> None:
    """Nothing was sent into it, so "gone" means what it says: the lock was taken away."""

    async def on_one_loop() -> Released:
        lock = TaskLock(name)
        await lock.aacquire()
        stranger.remove(name)
        proxy.cut()
        await asyncio.sleep(10 * RESTED)
        return await lock.arelease()

    if way == "async":
        assert asyncio.run(on_one_loop()) is Released.GONE
        return
    lock = TaskLock(name)
    lock.acquire()
    stranger.remove(name)
    proxy.cut()
    time.sleep(10 * RESTED)
    assert lock.release() is Released.GONE


@TWINS
def test_a_release_that_failed_says_so_and_is_done_later(
    proxy: Proxy, store: Store, stranger: RedisBackend, name: str, way: str
) -> None:
    lock = TaskLock(name)
    call(way, lock, "acquire")
    proxy.fault(RELEASE, times=2, unsent=True)
    assert call(way, lock, "release") is Released.UNKNOWN
    eventually(lambda: not store.exists(f"task_lock:{name}"))
    granted(stranger.acquire(an_ask(name, STRANGER)))  # the heartbeat, which has no reply either, leaves it alone
    eventually(lambda: not heartbeat.reconciler.leftovers)
    assert token_in(store, name) == STRANGER


def test_force_release_is_not_sent_twice(proxy: Proxy, store: Store, stranger: RedisBackend, name: str) -> None:
    """Gold standard 8.43: the second sending would take the lock from whoever got it after the first."""
    granted(stranger.acquire(an_ask(name)))
    lost = proxy.lose_reply(REMOVE, then=lambda: granted(stranger.acquire(an_ask(name, STRANGER))))
    with pytest.raises(BackendUnavailable):
        force_release_task_lock(name)
    assert lost.met
    assert token_in(store, name) == STRANGER


# --- renewal


def test_renewal_is_told_after_a_lost_reply(proxy: Proxy, store: Store, name: str) -> None:
    backend = get_backend()
    mine, gone = an_ask(name, ttl=5_000), an_ask(f"{name}:gone")
    granted(backend.acquire(mine))
    lost = proxy.lose_reply(RENEW)
    assert backend.renew([Renewal(ask.name, ask.token, 60_000) for ask in (mine, gone)]) == [
        RenewalResult.RENEWED,
        RenewalResult.LOST,
    ]
    assert lost.met
    assert store.pttl(f"task_lock:{name}") > 30_000
    assert not store.exists(f"task_lock:{gone.name}")
    assert backend.release(name, mine.token) is Released.RELEASED


def test_a_renewal_that_failed_is_tried_again_before_the_lease_ends(proxy: Proxy, store: Store, name: str) -> None:
    """Gold standard 8.8: an error, and an answer before the deadline: still held, and nobody was told otherwise."""
    told: list[str] = []
    lost = proxy.fault(RENEW, times=2, unsent=True)
    lock = TaskLock(name, lease=3, on_lost=told.append)
    lock.acquire()
    first = lock.lease.deadline
    eventually(lambda: lock.lease.deadline > first)
    assert len(lost.met) == 2
    assert lock.held
    assert not told
    assert lock.release() is Released.RELEASED


def test_renewals_that_fail_for_the_whole_lease_lose_the_lock_once(proxy: Proxy, name: str) -> None:
    """Gold standard 8.8: past the deadline it is lost, which is said once and seen by whoever asks."""
    told: list[str] = []
    lock = TaskLock(name, lease=0.6, on_lost=told.append)
    lock.acquire()
    proxy.fault(RENEW, times=-1, unsent=True)
    eventually(lambda: told)
    assert lock.lost
    assert not lock.held
    assert not lock.release()
    assert len(told) == 1
