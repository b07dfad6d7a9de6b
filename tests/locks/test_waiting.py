"""Waiting for a lock in Redis: in order of arrival, woken by the release, and nobody holds the others back.

What waiters do when a holder or a waiter dies is in ``test_crash``.
"""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import redis

from django_tasklock import TaskLock
from django_tasklock.backends import get_backend
from django_tasklock.backends.redis import RedisBackend
from django_tasklock.backends.redis.keys import HANDOVER_TTL
from django_tasklock.backends.redis.wake import RedisWaiter
from django_tasklock.types import Busy, Released
from tests.support.stores import an_ask, eventually, granted
from tests.support.twins import TWINS, call, conflict, listening, token_in
from tests.support.workers import Crew, Worker

pytest_plugins = ["tests.support.redis_fixtures", "tests.support.worker_fixtures"]
pytestmark = pytest.mark.redis

Store = redis.Redis  # of bytes
SOON = 1.5  # what a loaded machine may add to the next to nothing that is promised

WAIT = {
    "sync": """
        lock = TaskLock({name!r}, {options})
        lock.acquire(blocking=True)
        say("mine")
        told()
        lock.release()
    """,
    "async": """
        async def wait():
            global lock
            lock = TaskLock({name!r}, {options})
            await lock.aacquire(blocking=True)
            say("mine")
            told()
            return await lock.arelease()
        asyncio.run(wait())
    """,
}


def queue(store: Store, name: str) -> int:
    """How many wait."""
    return int(store.zcard(f"task_lock#queue:{name}"))


def listeners(store: Store, name: str, token: str) -> int:
    """How many listen on the channel of that waiter."""
    channel = (store.hget(f"task_lock#waiters:{name}", token) or b"").split()[1]
    return int(dict(store.pubsub_numsub(channel))[channel])


def has_not_asked(store: Store, waiters: str, token: str) -> None:
    """That waiter has asked for the last time as long ago as one in a stopped process."""
    seen, *rest = (store.hget(waiters, token) or b"").split(b" ")
    store.hset(waiters, token, b" ".join([b"%d" % (int(seen) - HANDOVER_TTL), *rest]))


def left(store: Store, name: str) -> float:
    """Seconds the lock's key has."""
    return float(store.pttl(f"task_lock:{name}")) / 1000


def waits(worker: Worker, store: Store, name: str, way: str = "sync", options: str = "") -> Worker:
    """``worker`` is in the queue of the lock, behind whoever is there."""
    before = listening(store, name)
    worker.start(WAIT[way].format(name=name, options=options))
    eventually(lambda: listening(store, name) == before + 1)
    return worker


def finishes(worker: Worker) -> None:
    """``worker``, which has the lock, releases it."""
    worker.tell()
    assert worker.done() is Released.RELEASED


@pytest.fixture
def held(name: str) -> TaskLock:
    """The lock in question, held by this process."""
    lock = TaskLock(name)
    assert lock.acquire()
    return lock


def test_in_order_of_arrival_over_several_processes_sync_and_async(
    crew: Crew, store: Store, name: str, held: TaskLock
) -> None:
    workers = [
        waits(worker, store, name, way)
        for worker, way in zip(crew.hire_many(4), ["sync", "async", "async", "sync"], strict=True)
    ]
    held.release()
    for worker in workers:
        assert worker.hears() == "mine"
        assert all(other.busy() for other in workers if other is not worker)
        finishes(worker)
        workers = [other for other in workers if other is not worker]
    assert not store.exists(f"task_lock:{name}")


def test_a_release_wakes_the_waiter(crew: Crew, store: Store, name: str) -> None:
    """Twenty hand-offs, none of which can wait for the next look, a second later."""
    waiter = crew.hire()
    spent = []
    for _ in range(20):
        lock = TaskLock(name)
        assert lock.acquire(blocking=True)
        waits(waiter, store, name)
        released = time.monotonic()
        lock.release()
        waiter.hears()
        spent.append(time.monotonic() - released)
        finishes(waiter)
    assert sorted(spent)[len(spent) // 2] < 0.1


@TWINS
def test_a_waiter_that_times_out_leaves_the_queue(store: Store, name: str, held: TaskLock, way: str) -> None:
    def give_up() -> None:
        lock = TaskLock(name)
        began = time.monotonic()
        error = conflict(way, lock, 0.4)
        assert 0.4 <= time.monotonic() - began < 0.4 + SOON
        assert f":{os.getpid()}" in str(error)

    in_a_thread(give_up)
    assert queue(store, name) == 0
    assert held.release() is Released.RELEASED
    assert not store.exists(f"task_lock:{name}")


@TWINS
def test_a_waiter_that_times_out_as_it_is_granted_the_lock_passes_it_on(
    store: Store, name: str, held: TaskLock, way: str, monkeypatch: pytest.MonkeyPatch, crew: Crew
) -> None:
    """The release comes after the last look, and before the place is given up."""
    second = crew.hire()
    leave = RedisWaiter.leave

    def release_before(waiter: RedisWaiter) -> None:
        if waiter.queued:
            waits(second, store, name)
            assert held.release() is Released.RELEASED
            assert token_in(store, name) == waiter.request.token
        leave(waiter)

    monkeypatch.setattr(RedisWaiter, "leave", release_before)
    in_a_thread(lambda: call(way, TaskLock(name), "acquire", blocking_timeout=0.3))
    given_up = time.monotonic()
    second.hears()
    assert time.monotonic() < given_up + SOON
    finishes(second)
    assert not store.exists(f"task_lock:{name}")


def test_a_waiter_cancelled_as_it_is_granted_the_lock_passes_it_on(
    store: Store, name: str, held: TaskLock, crew: Crew
) -> None:
    """The release has named it before the loop can read that, and the loop learns of the cancellation first."""
    second = crew.hire()

    async def cancelled() -> None:
        waiter = asyncio.create_task(TaskLock(name).aacquire(blocking=True))
        await asyncio.to_thread(eventually, lambda: listening(store, name) == 1)
        waits(second, store, name)  # all this blocks the loop, on purpose
        held_elsewhere = token_in(store, name)
        get_backend().release(name, str(held_elsewhere))
        assert token_in(store, name) != held_elsewhere
        assert queue(store, name) == 1
        waiter.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiter

    asyncio.run(cancelled())
    given_up = time.monotonic()
    second.hears()
    assert time.monotonic() < given_up + SOON
    finishes(second)


INTERRUPTED = """
    class Stop(BaseException): pass
    def strike(*details): raise Stop
    signal.signal(signal.SIGUSR1, strike)
    lock = TaskLock({name!r})
    try:
        lock.acquire(blocking=True)
    except Stop:
        pass
    lock.taken
"""


def test_an_interrupted_waiter_leaves_the_queue(crew: Crew, store: Store, name: str, held: TaskLock) -> None:
    """An exception out of a signal handler, as Celery's soft time limit is one."""
    worker = crew.hire()
    worker.start(INTERRUPTED.format(name=name))
    eventually(lambda: listening(store, name) == 1)
    os.kill(worker.pid, signal.SIGUSR1)
    assert worker.done() is False
    assert queue(store, name) == 0
    held.release()
    assert not store.exists(f"task_lock:{name}")


def test_a_lock_deleted_by_hand_is_noticed(crew: Crew, store: Store, name: str, held: TaskLock) -> None:
    """Nothing wakes the waiters: they look by themselves, each second, and take it in their order."""
    first, second = crew.hire_many(2)
    waits(first, store, name)
    waits(second, store, name)
    deleted = time.monotonic()
    store.delete(f"task_lock:{name}")
    first.hears()
    assert time.monotonic() < deleted + 1.0 + SOON
    assert second.busy()
    finishes(first)
    second.hears()
    finishes(second)


def test_a_flush_while_waiting(crew: Crew, store: Store, name: str, held: TaskLock) -> None:
    """The queue is gone too; each still gets it, one at a time."""
    workers = [waits(worker, store, name) for worker in crew.hire_many(2)]
    flushed = time.monotonic()
    store.flushdb()
    [winner] = eventually(lambda: [worker for worker in workers if not worker.busy()])
    assert time.monotonic() < flushed + 1.0 + SOON
    winner.hears()
    [loser] = [worker for worker in workers if worker is not winner]
    eventually(lambda: listening(store, name) == 1)  # it has looked, and waits again
    assert loser.busy()
    finishes(winner)
    loser.hears()
    finishes(loser)


def test_a_waiter_whose_connection_breaks_still_gets_it(crew: Crew, store: Store, name: str, held: TaskLock) -> None:
    worker = waits(crew.hire(), store, name)
    assert store.client_kill_filter(_type="pubsub") >= 1
    held.release()
    released = time.monotonic()
    worker.hears()
    assert time.monotonic() < released + 1.0 + SOON
    finishes(worker)


def test_without_a_lease_a_waiter_gets_the_whole_timeout(crew: Crew, store: Store, name: str, held: TaskLock) -> None:
    """Nobody would renew a short lease."""
    worker = waits(crew.hire(), store, name, "sync", "lease=None, timeout=60")
    held.release()
    worker.hears()
    assert left(store, name) > 50
    finishes(worker)


def test_with_a_lease_the_heartbeat_makes_a_whole_one_of_the_claim(
    crew: Crew, store: Store, name: str, held: TaskLock
) -> None:
    worker = waits(crew.hire(), store, name, "sync", "lease=30, timeout=60")
    held.release()
    worker.hears()
    eventually(lambda: left(store, name) > HANDOVER_TTL / 1000)
    finishes(worker)


def test_a_stranger_without_expiry_is_waited_for(store: Store, name: str) -> None:
    """``SET task_lock:x 1`` by hand: a lock that never ends, until somebody deletes it."""
    store.set(f"task_lock:{name}", "1")
    lock = TaskLock(name)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(lock.acquire, blocking_timeout=20)
        eventually(lambda: listening(store, name) == 1)
        store.delete(f"task_lock:{name}")
        assert waiting.result(10) is True
    assert lock.release() is Released.RELEASED


@pytest.mark.parametrize("kind", ["locks", "permits"])
@pytest.mark.parametrize("how", ["a release", "a look"])
def test_a_place_that_cannot_be_read_is_dropped(store: Store, name: str, kind: str, how: str) -> None:
    """Put there by hand, or by a version to come: it holds up nobody, and a release is a release."""
    backend = get_backend() if kind == "locks" else get_backend().permits
    line = f"task_lock#{'queue' if kind == 'locks' else 'permits-queue'}:{name}"
    holder, mine = an_ask(name), an_ask(name)
    granted(backend.acquire(holder))
    store.zadd(line, {"rubbish": 1, "a b c": 2, "": 3})
    with backend.waiter(mine) as waiter:
        assert isinstance(waiter.acquire(), Busy)
        if how == "a release":
            assert backend.release(name, holder.token) is Released.RELEASED
            assert granted(waiter.wait(10)).ttl == HANDOVER_TTL  # type: ignore[arg-type]
        else:
            store.delete(f"task_lock:{name}", f"task_lock#permits:{name}")
            granted(waiter.acquire())
    assert not store.exists(line)
    assert backend.release(name, mine.token) is Released.RELEASED


def line(store: Store, name: str) -> list[str]:
    """The tokens of those who wait, the first first."""
    return [entry.split()[0].decode() for entry in store.zrange(f"task_lock#queue:{name}", 0, -1)]


@pytest.mark.parametrize("kind", ["locks", "permits"])
def test_a_process_that_waits_for_the_first_time_has_its_place_before_it_listens(
    store: Store, stranger: RedisBackend, another: Any, name: str, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Forced: while it connects, somebody else comes to wait, and the lock is released."""
    fresh: Any = another()
    first, others = (fresh, stranger) if kind == "locks" else (fresh.permits, stranger.permits)
    holder, mine, later = an_ask(name), an_ask(name), an_ask(name)
    granted(others.acquire(holder))
    with others.waiter(later) as behind, first.waiter(mine) as ahead:
        assert first.waiters(name).total == 0  # its own request needs no new connection
        connect = fresh.client.connect

        def connect_late() -> Any:
            if threading.current_thread().name != "tasklock-listener":
                return connect()
            eventually(lambda: others.waiters(name).total == 1)
            assert isinstance(behind.acquire(), Busy)
            assert others.release(name, holder.token) is Released.RELEASED
            return connect()

        monkeypatch.setattr(fresh.client, "connect", connect_late)
        granted(ahead.acquire())
        assert others.release(name, mine.token) is Released.RELEASED
        granted(behind.wait(10))  # type: ignore[arg-type]


def refused() -> None:
    """In place of a connection."""
    raise redis.ConnectionError("refused")


@pytest.mark.parametrize("how", ["its connection is gone", "it has not looked for long"])
def test_a_waiter_that_was_thought_dead_keeps_its_place(
    store: Store, stranger: RedisBackend, another: Any, name: str, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is passed over, and is the first again as soon as it looks."""
    holder, first, second, third = (an_ask(name) for _ in range(4))
    granted(stranger.acquire(holder))
    mine = another()
    with mine.waiter(first) as waiter, stranger.waiter(second) as next_one, stranger.waiter(third) as last:
        for one in (waiter, next_one, last):
            assert isinstance(one.acquire(), Busy)
        if how == "its connection is gone":
            monkeypatch.setattr(mine.client, "connect", refused)
            mine.listener.renew()
            eventually(lambda: listeners(store, name, first.token) == 0)
        else:
            has_not_asked(store, f"task_lock#waiters:{name}", first.token)
        assert stranger.release(name, holder.token) is Released.RELEASED
        granted(next_one.wait(10))  # type: ignore[arg-type]
        assert line(store, name) == [third.token]
        assert waiter.wait(0.01) is None
        assert isinstance(waiter.acquire(), Busy)
        assert line(store, name) == [first.token, third.token]
        assert stranger.release(name, second.token) is Released.RELEASED
        assert token_in(store, name) == first.token


@pytest.mark.slow
def test_a_stopped_process_holds_the_others_back_for_a_claim_however_many_of_it_wait(
    crew: Crew, store: Store, name: str, held: TaskLock
) -> None:
    """They are still connected. One of them is handed the lock; once that lease is over none is."""
    stopped, other = crew.hire_many(2)
    stopped.start(f"""
        from concurrent.futures import ThreadPoolExecutor
        def wait(number):
            with TaskLock({name!r}, blocking=True):
                return number
        with ThreadPoolExecutor(8) as pool:
            done = sorted(pool.map(wait, range(8)))
        done
    """)
    eventually(lambda: listening(store, name) == 8)
    waits(other, store, name)
    stopped.stop()
    released = time.monotonic()
    held.release()
    other.hears()
    assert time.monotonic() < released + HANDOVER_TTL / 1000 + SOON
    stopped.go_on()
    eventually(lambda: queue(store, name) == 8)  # none of them has lost its place for good
    finishes(other)
    assert stopped.done() == list(range(8))


def in_a_thread(work: Any) -> None:
    """Run ``work`` where this thread's locks are not its own; raises what it raises."""
    with ThreadPoolExecutor(1) as pool:
        pool.submit(work).result(60)
