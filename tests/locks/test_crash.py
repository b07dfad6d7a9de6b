"""``kill -9``: what a dead holder had is free again within its lease, and whoever waits for it wakes by itself."""

from __future__ import annotations

import time

import pytest
import redis

from django_tasklock import TaskLock
from django_tasklock.backends.redis.keys import HANDOVER_TTL
from tests.support.guards import GUARD, states
from tests.support.stores import eventually
from tests.support.twins import conflict, listening, subscribers, token_in
from tests.support.workers import Crew, Trips, Worker
from tests.testapp.models import Video

pytest_plugins = ["tests.support.redis_fixtures", "tests.support.worker_fixtures"]
pytestmark = pytest.mark.redis

Store = redis.Redis  # of bytes
LEASE = 3.0
SOON = 15.0  # what a loaded machine may add to the next to nothing that is promised


def waits(worker: Worker, store: Store, name: str) -> Worker:
    """``worker`` is in the queue of the lock, behind whoever is there."""
    before = listening(store, name)
    worker.start(f"lock = TaskLock({name!r}, lease=60)\nassert lock.acquire(blocking=True)\ntime.monotonic()")
    eventually(lambda: listening(store, name) == before + 1)
    return worker


def test_a_waiter_wakes_when_the_dead_holders_lease_ends(crew: Crew, store: Store, trips: Trips, name: str) -> None:
    holder, waiter = crew.hire_many(2)
    holder.do(f"lock = TaskLock({name!r}, lease=3)\nassert lock.acquire()")
    waits(waiter, store, name)
    holder.kill()
    with trips:
        began = time.monotonic()
        expires = began + store.pttl(f"task_lock:{name}") / 1000
        woke = waiter.done()
    assert woke < expires + SOON, "on this machine sooner: it sees that the process is dead"
    assert trips.number < 5 * (woke - began)


def test_a_dead_holders_row_can_be_claimed_by_the_next(
    crew: Crew, store: Store, name: str, transactional_db: None
) -> None:
    video = Video.objects.create()
    holder, waiter = crew.hire_many(
        2,
        f"""
        @model_lock(Video, {name!r}, pk="pk", guard=GUARD, lease={LEASE}, on_conflict="wait")
        def work(pk):
            current_claim().update(progress=10)
            say("inside")
            told()
            return "done"
        """,
    )
    holder.start(f"work({video.pk})").hears()
    waiter.start(f"work({video.pk})")
    eventually(lambda: store.zcard(f"task_lock#queue:{name}"))
    holder.kill()
    assert states(video)[:2] == (GUARD.claim_as, 10), "whether or not the waiter has seen it die"
    assert waiter.hears(LEASE + 10) == "inside"
    waiter.tell()
    assert waiter.done() == "done"
    assert states(video) == ("ready", 10, 2)


def test_nobody_overtakes_the_waiters_of_a_dead_holder(crew: Crew, store: Store, name: str) -> None:
    """The first waiter is stopped, so that it cannot be faster than the newcomer: the store decides."""
    holder, first = crew.hire_many(2)
    holder.do(f"lock = TaskLock({name!r})\nassert lock.acquire()")
    waits(first, store, name)
    first.stop()
    holder.kill()
    store.delete(f"task_lock:{name}")  # its lease is over
    newcomer = TaskLock(name)
    assert str(first.pid) in str(conflict("sync", newcomer).holder)
    first.go_on()
    first.done()
    assert first.do("lock.token") == token_in(store, name)
    assert not newcomer.acquire()


def test_a_killed_waiter_is_skipped_at_once(crew: Crew, store: Store, name: str) -> None:
    """Gold standard 8.28."""
    lock = TaskLock(name)
    assert lock.acquire()
    dead = [waits(worker, store, name) for worker in crew.hire_many(2)]
    second = waits(crew.hire(), store, name)
    for worker in dead:
        worker.kill()
    eventually(lambda: subscribers(store, name) == 1)  # the server has noticed
    assert store.zcard(f"task_lock#queue:{name}") == 3
    lock.release()
    handed = token_in(store, name)
    second.done()
    assert second.do("lock.token") == handed
    assert store.zcard(f"task_lock#queue:{name}") == 0


def test_a_lock_that_was_handed_to_a_waiter_who_dies_is_soon_free(crew: Crew, store: Store, name: str) -> None:
    """It is killed before its heartbeat made a whole lease of the short one: not 60 s, as it had asked for."""
    lock = TaskLock(name)
    assert lock.acquire()
    first = crew.hire("from django_tasklock.locks.heartbeat import Heartbeat\nHeartbeat.follow = lambda *args: None")
    waits(first, store, name)
    lock.release()
    first.done()
    first.kill()
    assert 0 < store.pttl(f"task_lock:{name}") <= HANDOVER_TTL
