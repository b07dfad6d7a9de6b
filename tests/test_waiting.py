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

from django_tasklock import TaskLock, TaskLockAcquireError, TaskLockError, task_lock
from django_tasklock.backends import get_backend
from django_tasklock.backends.redis.layout import CLAIM
from django_tasklock.backends.redis.waiter import AsyncWaiter, RedisWaiter
from django_tasklock.types import Released
from tests.support.stores import an_ask, eventually
from tests.support.twins import TWINS, call, token_in
from tests.support.workers import Crew, Trips, Worker

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


def left(store: Store, name: str) -> float:
    """Seconds the lock's key has."""
    return float(store.pttl(f"task_lock:{name}")) / 1000


def waits(worker: Worker, store: Store, name: str, way: str = "sync", options: str = "") -> Worker:
    """``worker`` is in the queue of the lock, behind whoever is there."""
    before = queue(store, name)
    worker.start(WAIT[way].format(name=name, options=options))
    eventually(lambda: queue(store, name) == before + 1)
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


def test_what_a_contended_acquisition_costs_and_how_evenly_eight_processes_get_it(
    crew: Crew, store: Store, trips: Trips, name: str, held: TaskLock
) -> None:
    """At most 3 round trips: polling for it would need many. And nobody gets it much oftener than the others."""
    total = 160
    workers = crew.hire_many(8, "import redis\nfrom django.conf import settings")
    for worker in workers:
        worker.start(f"""
            store = redis.Redis.from_url(settings.TASKLOCK["LOCATION"])
            lock, mine, fences = TaskLock({name!r}, blocking=True), 0, []
            say(store.ping())
            while True:
                with lock:
                    if store.incr({name!r} + "#turns") > {total}:
                        break
                    fences.append(lock.fence)
                    mine += 1
                    time.sleep(0.01)  # eight of them are a round: longer than the machine keeps anybody waiting
            mine, fences
        """).hears()
    eventually(lambda: queue(store, name) == len(workers))
    with trips:
        began = time.monotonic()
        held.release()
        counts, fences = zip(*(worker.done(60) for worker in workers), strict=True)
        took = time.monotonic() - began
    assert sum(counts) == total
    assert max(counts) <= 1.25 * min(counts), counts
    everybody = sorted(fence for each in fences for fence in each)
    assert len(set(everybody)) == total
    assert trips.number <= 3.3 * total
    assert took < 0.05 * total  # a look each 0.1 s, as others have it, would take longer


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


@pytest.mark.slow
def test_a_wait_longer_than_the_clients_socket_timeout(crew: Crew, store: Store, name: str, held: TaskLock) -> None:
    """redis-py's is 5 s; ours are below 1 s."""
    workers = crew.hire_many(2)
    for worker, way in zip(workers, ["sync", "async"], strict=True):
        waits(worker, store, name, way)
    time.sleep(6)
    assert queue(store, name) == 2
    assert all(worker.busy() for worker in workers)
    released = time.monotonic()
    held.release()
    for worker in workers:
        worker.hears()
        finishes(worker)
    assert time.monotonic() < released + SOON


@TWINS
def test_who_gives_up_leaves_the_queue(store: Store, name: str, held: TaskLock, way: str) -> None:
    def give_up() -> None:
        lock = TaskLock(name)
        began = time.monotonic()
        assert call(way, lock, "acquire", blocking_timeout=0.4) is False
        assert 0.4 <= time.monotonic() - began < 0.4 + SOON
        assert isinstance(lock.conflict, TaskLockAcquireError)
        assert f":{os.getpid()}" in str(lock.conflict)

    in_a_thread(give_up)
    assert queue(store, name) == 0
    assert held.release() is Released.RELEASED
    assert not store.exists(f"task_lock:{name}")


@pytest.mark.parametrize("way", [RedisWaiter, AsyncWaiter])
def test_who_gives_up_just_as_it_is_its_turn_passes_the_lock_on(
    store: Store, name: str, held: TaskLock, way: type[Any], monkeypatch: pytest.MonkeyPatch, crew: Crew
) -> None:
    """The release comes after the last look, and before the place is given up."""
    second = crew.hire()
    waiting = "sync" if way is RedisWaiter else "async"
    leave = way.leave

    def release_before(waiter: Any) -> Any:
        if waiter._queued:
            waits(second, store, name)
            assert held.release() is Released.RELEASED
            assert token_in(store, name) == waiter.ask.token
        return leave(waiter)

    monkeypatch.setattr(way, "leave", release_before)
    in_a_thread(lambda: call(waiting, TaskLock(name), "acquire", blocking_timeout=0.3))
    given_up = time.monotonic()
    second.hears()
    assert time.monotonic() < given_up + SOON
    finishes(second)
    assert not store.exists(f"task_lock:{name}")


def test_who_is_cancelled_leaves_the_queue(store: Store, name: str, held: TaskLock) -> None:
    async def cancelled() -> None:
        waiter = asyncio.create_task(TaskLock(name).aacquire(blocking=True))
        await asyncio.to_thread(eventually, lambda: queue(store, name) == 1)
        waiter.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiter

    asyncio.run(cancelled())
    assert queue(store, name) == 0
    held.release()
    assert not store.exists(f"task_lock:{name}")


def test_who_is_cancelled_with_the_lock_in_the_mail_passes_it_on(
    store: Store, name: str, held: TaskLock, crew: Crew
) -> None:
    """The release has named it before the loop can read that, and the loop learns of the cancellation first."""
    second = crew.hire()

    async def cancelled() -> None:
        waiter = asyncio.create_task(TaskLock(name).aacquire(blocking=True))
        await asyncio.to_thread(eventually, lambda: queue(store, name) == 1)
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


def test_who_is_interrupted_leaves_the_queue(crew: Crew, store: Store, name: str, held: TaskLock) -> None:
    """An exception out of a signal handler, as Celery's soft time limit is one."""
    worker = crew.hire()
    worker.start(INTERRUPTED.format(name=name))
    eventually(lambda: queue(store, name) == 1)
    os.kill(worker.pid, signal.SIGUSR1)
    assert worker.done() is False
    assert queue(store, name) == 0
    held.release()
    assert not store.exists(f"task_lock:{name}")


def test_who_is_interrupted_with_the_lock_in_the_mail_passes_it_on(
    crew: Crew, store: Store, name: str, held: TaskLock
) -> None:
    first, second = crew.hire_many(2)
    first.start(INTERRUPTED.format(name=name))
    eventually(lambda: queue(store, name) == 1)
    waits(second, store, name)
    first.stop()
    held.release()
    assert queue(store, name) == 1
    os.kill(first.pid, signal.SIGUSR1)
    given_up = time.monotonic()
    first.go_on()
    assert first.done() is False
    second.hears()
    assert time.monotonic() < given_up + SOON  # the claim, had nobody given it up, would last 3 s
    finishes(second)


@TWINS
def test_a_lock_deleted_by_hand_is_noticed(crew: Crew, store: Store, name: str, held: TaskLock, way: str) -> None:
    """Nothing wakes the waiters: they look by themselves, each second, and take it in their order."""
    first, second = crew.hire_many(2)
    waits(first, store, name, way)
    waits(second, store, name, way)
    deleted = time.monotonic()
    store.delete(f"task_lock:{name}")
    first.hears()
    assert time.monotonic() < deleted + 1.0 + SOON
    assert second.busy()
    finishes(first)
    second.hears()
    finishes(second)


@TWINS
def test_a_flush_while_waiting(crew: Crew, store: Store, name: str, held: TaskLock, way: str) -> None:
    """The queue is gone too; each still gets it, one at a time."""
    workers = [waits(worker, store, name, way) for worker in crew.hire_many(2)]
    flushed = time.monotonic()
    store.flushdb()
    [winner] = eventually(lambda: [worker for worker in workers if not worker.busy()])
    assert time.monotonic() < flushed + 1.0 + SOON
    winner.hears()
    [loser] = [worker for worker in workers if worker is not winner]
    eventually(lambda: queue(store, name) == 1)  # it has looked, and waits again
    assert loser.busy()
    finishes(winner)
    loser.hears()
    finishes(loser)


@TWINS
def test_a_waiter_whose_connection_breaks_still_gets_it(
    crew: Crew, store: Store, name: str, held: TaskLock, way: str
) -> None:
    worker = waits(crew.hire(), store, name, way)
    assert store.client_kill_filter(_type="pubsub") >= 1
    held.release()
    released = time.monotonic()
    worker.hears()
    assert time.monotonic() < released + 1.0 + SOON
    finishes(worker)


@TWINS
def test_without_a_lease_a_waiter_gets_the_whole_timeout(
    crew: Crew, store: Store, name: str, held: TaskLock, way: str
) -> None:
    """Nobody would renew a short claim."""
    worker = waits(crew.hire(), store, name, way, "lease=None, timeout=60")
    held.release()
    worker.hears()
    assert left(store, name) > 50
    finishes(worker)


@TWINS
def test_with_a_lease_the_heartbeat_makes_a_whole_one_of_the_claim(
    crew: Crew, store: Store, name: str, held: TaskLock, way: str
) -> None:
    worker = waits(crew.hire(), store, name, way, "lease=30, timeout=60")
    held.release()
    worker.hears()
    eventually(lambda: left(store, name) > CLAIM / 1000)
    finishes(worker)


def test_threads_of_one_process_take_turns(store: Store, name: str) -> None:
    inside, most = 0, 0

    def work(number: int) -> int:
        nonlocal inside, most
        with TaskLock(name, blocking_timeout=30):
            inside += 1
            most = max(most, inside)
            time.sleep(0.005)
            inside -= 1
        return number

    with ThreadPoolExecutor(20) as pool:
        assert sorted(pool.map(work, range(20))) == list(range(20))
    assert most == 1
    assert queue(store, name) == 0


def test_coroutines_of_one_loop_take_turns(store: Store, name: str) -> None:
    inside, most = 0, 0

    async def work() -> None:
        nonlocal inside, most
        async with TaskLock(name, blocking_timeout=30):
            inside += 1
            most = max(most, inside)
            await asyncio.sleep(0.005)
            inside -= 1

    async def all_at_once() -> None:
        await asyncio.gather(*(work() for _ in range(20)))

    asyncio.run(all_at_once())
    assert most == 1
    assert queue(store, name) == 0


def test_a_decorated_function_waits_where_it_is_told_to(crew: Crew, store: Store, name: str, held: TaskLock) -> None:
    @task_lock(name, on_conflict="wait", blocking_timeout=30)
    def work() -> str:
        return "done"

    @task_lock(name, on_conflict="wait", blocking_timeout=0.2)
    def hasty() -> None:
        raise AssertionError("it runs without the lock")

    def impatient() -> None:
        with pytest.raises(TaskLockAcquireError, match="is held by"):
            hasty()

    in_a_thread(impatient)
    with ThreadPoolExecutor(1) as pool:
        call_of_it = pool.submit(work)
        eventually(lambda: queue(store, name) == 1)
        assert not call_of_it.done()
        held.release()
        assert call_of_it.result(10) == "done"


def test_a_stranger_without_expiry_is_waited_for(store: Store, name: str) -> None:
    """``SET task_lock:x 1`` by hand: a lock that never ends, until somebody deletes it."""
    store.set(f"task_lock:{name}", "1")
    lock = TaskLock(name)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(lock.acquire, blocking_timeout=20)
        eventually(lambda: queue(store, name) == 1)
        store.delete(f"task_lock:{name}")
        assert waiting.result(10) is True
    assert lock.release() is Released.RELEASED


def test_a_limit_that_is_none_is_refused(name: str) -> None:
    for limit in (0, -1, float("nan"), "5"):
        with pytest.raises(TaskLockError, match="blocking_timeout"):
            TaskLock(name, blocking_timeout=limit)  # type: ignore[arg-type]
    with pytest.raises(TaskLockError, match="means nothing"):
        TaskLock(name).acquire(blocking=False, blocking_timeout=1)


def test_a_waiter_of_the_store_says_when_it_was_handed_a_short_claim(store: Store, name: str) -> None:
    """What the lock counts on: fence and time of the claim, not those that were asked for."""
    backend = get_backend()
    holder, mine = an_ask(name), an_ask(name)
    backend.acquire(holder)
    with backend.waiter(mine) as waiter:
        waiter.acquire()
        threading.Timer(0.05, backend.release, (name, holder.token)).start()
        handed = waiter.wait(10)
    assert handed is not None
    assert handed.ttl == CLAIM
    record = backend.get(name)
    assert record is not None
    assert (record.token, record.fence) == (mine.token, handed.fence)
    assert record.ttl is not None
    assert record.ttl <= CLAIM


def in_a_thread(work: Any) -> None:
    """Run ``work`` where this thread's locks are not its own; raises what it raises."""
    with ThreadPoolExecutor(1) as pool:
        pool.submit(work).result(60)
