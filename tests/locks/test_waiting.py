"""Waiting for a lock in Redis: in order of arrival, woken by the release, and nobody holds the others back.

One subscription of a process wakes all who wait in it: threads and coroutines, for locks and for permits. What waiters
do when a holder or a waiter dies is in ``test_crash``.
"""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import pytest
import redis

from django_tasklock import TaskLock, TaskLockAcquireError, acquire_task_lock, release_task_lock
from django_tasklock.backends import get_backend
from django_tasklock.backends.redis import RedisBackend, keys, wake
from django_tasklock.backends.redis.keys import HANDOVER_TTL
from django_tasklock.types import Busy, Released
from tests.support.stores import an_ask, be_patient, eventually, granted, new_token
from tests.support.twins import TWINS, channels, conflict, listening, token_in
from tests.support.workers import Crew, Worker

pytest_plugins = ["tests.support.redis_fixtures", "tests.support.worker_fixtures"]
pytestmark = pytest.mark.redis

Store = redis.Redis  # of bytes

WAIT = {
    "sync": """
        lock = TaskLock({name!r})
        lock.acquire(blocking=True)
        say("mine")
        told()
        lock.release()
    """,
    "async": """
        async def wait():
            global lock
            lock = TaskLock({name!r})
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


def waits(worker: Worker, store: Store, name: str, way: str = "sync") -> Worker:
    """``worker`` is in the queue of the lock, behind whoever is there."""
    before = listening(store, name)
    worker.start(WAIT[way].format(name=name))
    eventually(lambda: listening(store, name) == before + 1)
    return worker


def finishes(worker: Worker) -> None:
    """``worker``, which has the lock, releases it."""
    worker.tell()
    assert worker.done() is Released.RELEASED


@pytest.fixture(autouse=True)
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    be_patient(monkeypatch)


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
    """Ten hand-offs, most of which did not wait for the next look, a second later."""
    waiter = crew.hire()
    spent = []
    for _ in range(10):
        lock = TaskLock(name)
        assert lock.acquire(blocking=True)
        waits(waiter, store, name)
        released = time.monotonic()
        lock.release()
        waiter.hears()
        spent.append(time.monotonic() - released)
        finishes(waiter)
    assert sorted(spent)[len(spent) // 2] < 0.5


@TWINS
def test_a_waiter_that_times_out_leaves_the_queue(store: Store, name: str, held: TaskLock, way: str) -> None:
    def give_up() -> None:
        lock = TaskLock(name)
        began = time.monotonic()
        error = conflict(way, lock, 0.4)
        assert 0.4 <= time.monotonic() - began < 20
        assert f":{os.getpid()}" in str(error)

    in_a_thread(give_up)
    assert queue(store, name) == 0
    assert held.release() is Released.RELEASED
    assert not store.exists(f"task_lock:{name}")


def test_a_waiter_cancelled_as_it_is_granted_the_lock_passes_it_on(
    store: Store, name: str, held: TaskLock, crew: Crew, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The release has named it before the loop can read that, and the loop learns of the cancellation first."""
    monkeypatch.setattr(keys, "HANDOVER_TTL", 600_000)  # so that nobody has it because that is over
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
    second.hears()
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


def test_a_flush_while_waiting(crew: Crew, store: Store, name: str, held: TaskLock) -> None:
    """The queue is gone too; each still gets it, one at a time."""
    workers = [waits(worker, store, name) for worker in crew.hire_many(2)]
    store.flushdb()
    [winner] = eventually(lambda: [worker for worker in workers if not worker.busy()])
    winner.hears()
    [loser] = [worker for worker in workers if worker is not winner]
    eventually(lambda: listening(store, name) == 1)  # it has looked, and waits again
    assert loser.busy()
    finishes(winner)
    loser.hears()
    finishes(loser)


def test_without_a_lease_a_waiter_gets_the_whole_timeout(store: Store, name: str, held: TaskLock) -> None:
    """Nobody would renew a short lease."""
    lock = TaskLock(name, lease=None, timeout=60)
    with ThreadPoolExecutor(1) as pool:
        taken = pool.submit(lock.acquire, blocking=True)
        eventually(lambda: listening(store, name) == 1)
        held.release()
        assert taken.result(60)
        assert store.pttl(f"task_lock:{name}") > 30_000
        assert pool.submit(lock.release).result(60)


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
            eventually(lambda: connections(store, place(store, name, first.token)[1]) == 0)
        else:
            seen, *rest = store.hget(f"task_lock#waiters:{name}", first.token).split(b" ")  # as one that is stopped
            store.hset(f"task_lock#waiters:{name}", first.token, b" ".join([b"%d" % (int(seen) - HANDOVER_TTL), *rest]))
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
    assert time.monotonic() < released + 5 * HANDOVER_TTL / 1000, "and not once for each of the eight"
    stopped.go_on()
    eventually(lambda: queue(store, name) == 8)  # none of them has lost its place for good
    finishes(other)
    assert stopped.done() == list(range(8))


def in_a_thread(work: Any) -> None:
    """Run ``work`` where this thread's locks are not its own; raises what it raises."""
    with ThreadPoolExecutor(1) as pool:
        pool.submit(work).result(60)


# One subscription a process


def connections(store: redis.Redis, channel: bytes | str) -> int:
    """How many connections listen there."""
    return int(dict(store.pubsub_numsub(channel)).popitem()[1])


def place(store: redis.Redis, name: str, token: str) -> tuple[int, str]:
    """When that waiter asked last, and its channel."""
    seen, channel, *_ = (store.hget(f"task_lock#waiters:{name}", token) or b"").decode().split(" ", 2)
    return int(seen), channel


def test_threads_and_coroutines_wait_on_one_connection(store: redis.Redis, another: Any, name: str) -> None:
    """Twenty of them, for locks and permits of different names: each is woken when it is its turn."""
    holder, mine = another(), another()
    names = [f"{name}:{number}" for number in range(10)]
    held = {one: new_token() for one in names}
    for one in names:
        for leases in (holder, holder.permits):
            granted(leases.acquire(an_ask(one, held[one])))
    woken: list[str] = []

    def wait(one: str) -> None:
        with mine.waiter(an_ask(one)) as waiter:
            while isinstance(waiter.acquire(), Busy) and waiter.wait(60) is None:
                pass
            woken.append(one)

    async def wait_for_permits() -> None:
        async def turn(one: str) -> None:
            waiter = mine.permits.waiter(an_ask(one))
            while isinstance(await waiter.aacquire(), Busy) and await waiter.await_(60) is None:
                pass
            woken.append(one)
            await waiter.aleave()

        await asyncio.gather(*map(turn, names))

    threads = [threading.Thread(target=wait, args=(one,)) for one in names]
    threads.append(threading.Thread(target=lambda: asyncio.run(wait_for_permits())))
    for thread in threads:
        thread.start()
    eventually(lambda: all(holder.waiters(one).total == holder.permits.waiters(one).total == 1 for one in names))
    eventually(lambda: len(set().union(*(channels(store, one) for one in names))) == 1)  # of a process, for all
    assert connections(store, channels(store, name + ":0").pop()) == 1
    for one in names:
        for leases in (holder, holder.permits):
            leases.release(one, held[one])
    for thread in threads:
        thread.join(30)
    assert sorted(woken) == sorted(2 * names)


def test_the_subscription_ends_when_nobody_has_waited_for_a_while(
    store: redis.Redis, another: Any, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wake, "LINGER", 0.1)
    backend, holder = another(), an_ask(name)
    granted(backend.acquire(holder))
    for _ in range(2):
        with backend.waiter(an_ask(name)) as waiter:
            assert isinstance(waiter.acquire(), Busy)
            channel = place(store, name, waiter.request.token)[1]
            eventually(lambda channel=channel: connections(store, channel) == 1)
        eventually(lambda channel=channel: connections(store, channel) == 0)


def test_a_message_about_an_earlier_turn_is_no_grant(store: redis.Redis, another: Any, name: str) -> None:
    """A stopped process finds it in its buffer when it goes on, and has asked anew, behind another holder."""
    backend, holder, mine = another(), an_ask(name), an_ask(name)
    granted(backend.acquire(holder))
    with backend.waiter(mine) as waiter:
        assert isinstance(waiter.acquire(), Busy)
        seen, channel = place(store, name, mine.token)
        assert store.publish(channel, f"{mine.token} 7 {seen - 4000}") == 1
        assert waiter.wait(0.3) is None
        assert store.publish(channel, f"{new_token()} 7 {seen}") == 1
        assert waiter.wait(0.3) is None
        assert backend.release(name, holder.token) is Released.RELEASED
        eventually(lambda: waiter.wait(1))


@pytest.mark.parametrize("nothing", [0, timedelta(0)], ids=repr)
def test_who_has_no_time_left_does_not_wait(store: Store, name: str, nothing: Any) -> None:
    assert acquire_task_lock(name)
    assert not TaskLock(name).acquire(blocking_timeout=nothing)
    with pytest.raises(TaskLockAcquireError, match="did not wait for it"), TaskLock(name, blocking_timeout=nothing):
        raise AssertionError("it is held")
    assert queue(store, name) == 0
    release_task_lock(name)
    assert TaskLock(name).acquire(blocking_timeout=nothing)
