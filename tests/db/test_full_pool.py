"""A pool all of whose connections are in use: by bodies that query for longer than a lease, or by calls that wait."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from django.db import connection

from django_tasklock import ConcurrencyLimiter, TaskLock, is_task_locked, model_lock
from django_tasklock.db.pools import longest_open, timeouts
from tests.support.database_pool import checked_out, needs_pool, pooled
from tests.support.guards import GUARD, states
from tests.support.public import forked, in_store
from tests.support.stores import eventually
from tests.testapp.models import Video

pytestmark = [pytest.mark.database, pytest.mark.django_db(transaction=True)]

LEASE = 6


@pytest.fixture(autouse=True)
def _in_the_database(settings: Any) -> Iterator[None]:
    needs_pool()
    yield from in_store("database", settings)


def clients() -> set[int]:
    """The server's processes for the connections to this database."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND backend_type = 'client backend'"
        )
        return {pid for (pid,) in cursor.fetchall()}


@contextmanager
def pool_of_two() -> Iterator[tuple[Any, Callable[[], set[int]]]]:
    """A pool, one of its connections in use here, and what tells the clients of the server beside it."""
    with pooled(min_size=2, max_size=2, timeout=0.5) as pool:
        pool.open(wait=True)
        pooled_clients = {one.info.backend_pid for one in pool._pool}
        connection.ensure_connection()
        eventually(lambda: clients() == pooled_clients)  # those of the test before are gone
        yield pool, lambda: clients() - pooled_clients


@contextmanager
def used_up(pool: Any) -> Iterator[None]:
    """Another body has the other one."""
    taken = pool.getconn()
    try:
        yield
    finally:
        pool.putconn(taken)


def renewed(lock: TaskLock) -> bool:
    """Wait for a renewal, and return whether the store says that it is held."""
    due = lock.lease.renew_at
    eventually(lambda: lock.lease.renew_at > due)
    lock.ensure_held()
    return True


def test_leases_of_locks_and_permits_outlive_it(caplog: pytest.LogCaptureFixture) -> None:
    """Also of those that are taken while it is used up."""
    with pool_of_two() as (pool, _), TaskLock("one", lease=LEASE) as one, used_up(pool):
        limiter = ConcurrencyLimiter("mail", 1, lease=LEASE)
        with limiter, TaskLock("two", lease=LEASE) as two:
            ends = time.monotonic() + LEASE
            eventually(lambda: time.monotonic() > ends)
            assert renewed(one)
            assert renewed(two)
            assert len(limiter.members()) == 1
    assert not caplog.records


def test_what_is_released_without_a_connection_is_free_at_once() -> None:
    """Not only after its lease."""
    held, full = threading.Event(), threading.Event()

    def body() -> None:
        with TaskLock("one", lease=600):
            held.set()
            full.wait(60)

    with pool_of_two() as (pool, _):
        thread = threading.Thread(target=body)
        thread.start()
        held.wait(60)
        with used_up(pool):
            full.set()
            eventually(lambda: not is_task_locked("one"))
            thread.join(60)
            assert timeouts("default") == 1  # nobody waits for it twice


def test_who_waits_for_a_lock_has_none() -> None:
    """Else two who wait would keep the one for whom they wait from writing what it has done, and from ending."""
    video = Video.objects.create()
    waiting = threading.Barrier(5, timeout=60)

    @model_lock(Video, "video:{pk}", pk="pk", guard=GUARD, release_connections=True)
    def process(pk: int) -> None:
        waiting.wait()
        eventually(lambda: checked_out(pool) > 0)  # now and then, for a moment
        eventually(lambda: checked_out(pool) == 0)

    def wait() -> None:
        waiting.wait()
        with TaskLock(f"video:{video.pk}", blocking_timeout=60):
            pass

    with pool_of_two() as (pool, _):
        threads = [threading.Thread(target=wait) for _ in range(4)]
        for thread in threads:
            thread.start()
        process(video.pk)
        for thread in threads:
            thread.join(60)
        assert states(video)[0] == "ready"
        assert not is_task_locked(f"video:{video.pk}")


def test_the_heartbeat_has_one_connection_of_its_own_until_the_last_lease_is_gone() -> None:
    with pool_of_two() as (_, others):
        with TaskLock("one", lease=600) as one, TaskLock("two", lease=600) as two:
            due = one.lease.renew_at, two.lease.renew_at
            eventually(others)
            assert (one.lease.renew_at, two.lease.renew_at) == due  # long before it is needed
            assert len(others()) == 1
            connection.close()
            assert longest_open("default") == 0  # who looks for a body that keeps its connection does not find this one
        connection.ensure_connection()
        eventually(lambda: not others(), 4)  # not when the heartbeat would look by itself: in 5 s


def test_it_is_replaced_if_the_server_ends_it(caplog: pytest.LogCaptureFixture) -> None:
    with pool_of_two() as (pool, others), TaskLock("one", lease=LEASE) as lock, used_up(pool):
        (first,) = eventually(others)
        with connection.cursor() as cursor:
            cursor.execute("SELECT pg_terminate_backend(%s)", [first])
        assert renewed(lock)
        assert eventually(others) != {first}
    assert not caplog.records


def test_a_child_has_one_of_its_own() -> None:
    def child() -> set[int]:
        connection.pool.open(wait=True)
        connection.ensure_connection()
        before = clients()
        with TaskLock("two", lease=LEASE) as lock:
            return renewed(lock) and clients() - before

    with pool_of_two() as (_, others), TaskLock("one", lease=LEASE) as lock:
        own = eventually(others)
        assert len(forked(child)) == 1
        assert renewed(lock)
        assert eventually(lambda: others() == own)
