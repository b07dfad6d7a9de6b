"""A reply is lost after the server executed the request: no orphaned key, no false answer, no place for the dead."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor

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
from tests.support.proxy import Proxy, Request, scripts
from tests.support.stores import an_ask, end_lease, eventually, granted, new_token
from tests.support.twins import TWINS, call, conflict, token_in

pytest_plugins = ["tests.support.redis_fixtures"]
pytestmark = pytest.mark.redis

ACQUIRE, RELEASE, EXTEND, RENEW, REMOVE, FLAG = map(
    scripts, ("acquire", "release", "extend", "renew", "remove", "flag")
)
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


def test_an_acquire_that_failed_leaves_no_key(proxy: Proxy, store: Store, name: str) -> None:
    """Gold standard 8.5: every reply is lost, the caller is told so, and the key goes long before its time."""
    seen: list[str | None] = []
    lost = proxy.lose_reply(ACQUIRE, times=2, then=lambda: seen.append(token_in(store, name)))
    with pytest.raises(BackendUnavailable):
        TaskLock(name, lease=None).acquire()
    assert len(lost.met) == 2
    assert seen[0] is not None, "there was no key: the test shows nothing"
    assert seen[0] == seen[1]
    eventually(lambda: not store.exists(f"task_lock:{name}"))
    assert store.zscore("task_lock#index", f"task_lock:{name}") is None
    eventually(lambda: not heartbeat.reconciler.leftovers)


def test_the_lease_counts_from_the_request(proxy: Proxy, name: str) -> None:
    """Gold standard 8.12: the way of the reply is part of the lease."""
    proxy.fault(ACQUIRE, delay=0.4)
    lock = TaskLock(name, lease=None, timeout=30)
    lock.acquire()
    assert lock.time_left <= 30 - 0.4
    assert lock.lease.deadline <= monotonic() + 30 - 0.4
    lock.release()


# --- release


def test_release_after_a_lost_reply_spares_the_next_holder(
    proxy: Proxy, store: Store, stranger: RedisBackend, name: str
) -> None:
    """Gold standard 8.3: somebody else takes the lock between the two sendings."""
    lock = TaskLock(name)
    lock.acquire()
    lost = proxy.lose_reply(RELEASE, then=lambda: granted(stranger.acquire(an_ask(name, STRANGER))))
    assert lock.release() is Released.RELEASED
    assert lost.met
    assert token_in(store, name) == STRANGER
    assert stranger.release(name, STRANGER) is Released.RELEASED


def test_a_lost_reply_does_not_turn_a_lapsed_lock_into_a_released_one(
    proxy: Proxy, store: Store, stranger: RedisBackend, name: str
) -> None:
    """Gold standard 8.1: A lapsed, B has it; A is told that it was no longer its own, whatever got lost."""
    lock = TaskLock(name, lease=None, timeout=60)
    lock.acquire()
    end_lease(lock)
    granted(stranger.acquire(an_ask(name, STRANGER)))
    lost = proxy.lose_reply(RELEASE)
    assert not lock.release()
    assert lost.met
    assert token_in(store, name) == STRANGER


def test_a_flag_whose_clearing_was_not_told_may_have_been_set(proxy: Proxy, name: str) -> None:
    """Gold standard 8.27: else nobody promotes the message that is parked behind the lock."""
    store = get_backend()
    store.set_flag(name)
    lost = proxy.lose_reply(FLAG)
    assert store.clear_flag(name) is True
    assert lost.met
    assert store.clear_flag(name) is False


def test_force_release_is_not_sent_twice(proxy: Proxy, store: Store, stranger: RedisBackend, name: str) -> None:
    """Gold standard 8.43: the second sending would take the lock from whoever got it after the first."""
    granted(stranger.acquire(an_ask(name)))
    lost = proxy.lose_reply(REMOVE, then=lambda: granted(stranger.acquire(an_ask(name, STRANGER))))
    with pytest.raises(BackendUnavailable):
        force_release_task_lock(name)
    assert lost.met
    assert token_in(store, name) == STRANGER


def test_a_connection_that_was_closed_meanwhile_is_no_lost_reply(
    proxy: Proxy, stranger: RedisBackend, name: str
) -> None:
    """Nothing was sent into it, so "gone" means what it says: the lock was taken away."""
    lock = TaskLock(name)
    lock.acquire()
    stranger.remove(name)
    proxy.cut()
    time.sleep(10 * RESTED)  # after so short a rest a connection is looked at before it is used
    assert lock.release() is Released.GONE


# --- extend and renew


def test_extensions_and_renewals_are_told_after_a_lost_reply(proxy: Proxy, store: Store, name: str) -> None:
    lock = TaskLock(name, lease=None, timeout=30)
    lock.acquire()
    lost = proxy.lose_reply(EXTEND)
    assert lock.extend(timeout=300) is True
    assert lost.met
    assert lock.time_left > 200
    lost = proxy.lose_reply(RENEW)
    batch = [Renewal(name, lock.token, 900_000), Renewal(f"{name}:gone", new_token(), 900_000)]
    assert get_backend().renew(batch) == [RenewalResult.RENEWED, RenewalResult.LOST]
    assert lost.met
    assert store.pttl(f"task_lock:{name}") > 600_000
    assert not store.exists(f"task_lock:{name}:gone")
    assert lock.release() is Released.RELEASED


# --- waiting


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


def test_a_waiter_keeps_one_place_after_a_lost_reply(
    proxy: Proxy, store: Store, stranger: RedisBackend, name: str
) -> None:
    granted(stranger.acquire(an_ask(name, STRANGER)))
    lost = proxy.lose_reply(enqueue)
    lock = TaskLock(name)
    with ThreadPoolExecutor(1) as pool:
        taken = pool.submit(lock.acquire, blocking_timeout=30)
        eventually(lambda: lost.met)
        eventually(lambda: waiting(store, name) == 1)
        assert stranger.release(name, STRANGER) is Released.RELEASED
        assert taken.result(10) is True
        assert token_in(store, name) == lock.token
        assert waiting(store, name) == 0
        assert pool.submit(lock.release).result(10) is Released.RELEASED


def test_a_waiter_gets_the_lock_although_the_notification_was_lost(
    proxy: Proxy, store: Store, stranger: RedisBackend, name: str
) -> None:
    """Gold standard 8.27: the lock was handed over to it, and nobody could tell it so."""
    granted(stranger.acquire(an_ask(name, STRANGER)))
    lock = TaskLock(name)
    with ThreadPoolExecutor(1) as pool:
        taken = pool.submit(lock.acquire, blocking_timeout=30)
        eventually(lambda: waiting(store, name) == 1)
        proxy.mute = True
        stranger.release(name, STRANGER)
        assert taken.result(10) is True
        assert token_in(store, name) == lock.token
        assert store.pttl(f"task_lock:{name}") > 30_000, "the short lease was not made a whole lease"
        assert pool.submit(lock.release).result(10) is Released.RELEASED


def test_a_waiter_that_listens_again_keeps_its_place(
    proxy: Proxy, store: Store, stranger: RedisBackend, name: str
) -> None:
    """Its connection was cut; whoever came later does not get in before it."""
    granted(stranger.acquire(an_ask(name, STRANGER)))
    with ThreadPoolExecutor(1) as pool:
        taken = pool.submit(TaskLock(name).acquire, blocking_timeout=30)
        eventually(lambda: waiting(store, name) == 1)
        entries = store.zrange(f"task_lock#queue:{name}", 0, -1, withscores=True)
        before = len(proxy.requests)
        proxy.cut()
        eventually(lambda: any(request[0] == b"SUBSCRIBE" for request in proxy.requests[before:]))
        eventually(lambda: listeners(store, name) == 1)
        assert store.zrange(f"task_lock#queue:{name}", 0, -1, withscores=True) == entries
        stranger.release(name, STRANGER)
        assert taken.result(10) is True


@pytest.mark.parametrize("times", [1, 2])
def test_giving_up_is_told_after_lost_replies(
    proxy: Proxy, store: Store, stranger: RedisBackend, name: str, times: int
) -> None:
    """Busy is busy: that good-bye was not heard does not make it "the store is down"."""
    granted(stranger.acquire(an_ask(name, STRANGER)))
    lost = proxy.lose_reply(leave, times=times)
    lock = TaskLock(name)
    assert conflict("sync", lock, 0.2).time_left is not None
    assert len(lost.met) == times
    assert waiting(store, name) == 0
    assert token_in(store, name) == STRANGER


def test_a_queue_entry_that_could_not_be_removed_does_not_delay_others(
    proxy: Proxy, store: Store, stranger: RedisBackend, name: str
) -> None:
    """Gold standard 8.28: whoever is next in the queue and does not listen any more is passed over."""
    granted(stranger.acquire(an_ask(name, STRANGER)))
    proxy.fault(leave, times=2, unsent=True)
    assert TaskLock(name).acquire(blocking_timeout=0.2) is False
    assert waiting(store, name) == 1, "the place is gone: the test shows nothing"
    eventually(lambda: listeners(store, name) == 0)  # the server hears of the closed channel in its own time
    assert stranger.release(name, STRANGER) is Released.RELEASED
    granted(stranger.acquire(an_ask(name)))
