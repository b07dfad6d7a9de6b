"""Through PgBouncer in transaction pooling: between two transactions a connection is somebody else's.

What needs a session is not there: ``SET`` that outlives its transaction, prepared statements by name, advisory locks,
``LISTEN``. So these run with two server connections for many clients, each given out anew for every transaction.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest
from django.db import connection, connections

from django_tasklock import (
    ConcurrencyLimiter,
    RateLimiter,
    StaleClaim,
    TaskLock,
    TaskLockError,
    acquire_task_lock,
    current_claim,
    force_release_task_lock,
    is_task_locked,
    list_all_task_locks,
    model_lock,
    testing,
)
from django_tasklock.locks.heartbeat import heartbeat
from django_tasklock.operations import sweep
from tests.support.database_pool import needs_pool, pooled
from tests.support.guards import GUARD, in_threads, states
from tests.support.pgbouncer import NoPgBouncer, PgBouncer
from tests.support.public import in_store
from tests.support.stores import eventually
from tests.testapp.models import Video

pytestmark = [pytest.mark.database, pytest.mark.django_db(transaction=True)]

SERVERS = 2


@pytest.fixture(params=["plain", "pool"])
def pooler(request: pytest.FixtureRequest, settings: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[PgBouncer]:
    """The default database through PgBouncer, with the locks in it; also where psycopg has a pool before it."""
    needs_pool()
    given = connection.settings_dict
    try:
        bouncer = PgBouncer(given, servers=SERVERS).start()
    except NoPgBouncer as problem:
        pytest.skip(str(problem))
    connection.close()
    monkeypatch.setitem(given, "HOST", "127.0.0.1")
    monkeypatch.setitem(given, "PORT", str(bouncer.port))
    monkeypatch.setitem(given, "DISABLE_SERVER_SIDE_CURSORS", True)
    try:
        for _ in in_store("database", settings):
            if request.param == "pool":
                with pooled(max_size=8):
                    yield bouncer
            else:
                yield bouncer
    finally:
        connections.close_all()
        monkeypatch.undo()
        bouncer.stop()


def backends() -> set[int]:
    """The server's processes that have answered one client, one transaction after the other."""
    found = set()
    for _ in range(20):
        with connection.cursor() as cursor:
            cursor.execute("SELECT pg_backend_pid()")
            found.add(cursor.fetchone()[0])
    return found


def test_it_is_one_and_pools_transactions(pooler: PgBouncer) -> None:
    """Else nothing here is shown: one client is answered by two processes of the server, now by this, now by that."""
    assert pooler.show("CONFIG")["pool_mode"] == "transaction"
    eventually(lambda: SERVERS in [len(one) for one in in_threads(6, backends)])  # in a stall threads go one by one


def test_locks_are_taken_renewed_given_back_and_swept(pooler: PgBouncer) -> None:
    with TaskLock("report", lease=6) as lock:
        due = lock.lease.renew_at
        eventually(lambda: lock.lease.renew_at > due)  # the heartbeat comes through, too
        lock.ensure_held()
        assert [info.name for info in list_all_task_locks()] == ["report"]
        assert lock.extend(60)
    assert not is_task_locked("report")
    assert len(heartbeat) == 0
    assert sweep(dry_run=True, pause=0) is not None


def test_no_client_keeps_a_connection_while_it_holds_something(pooler: PgBouncer) -> None:
    """Twelve clients, two server connections."""
    assert sorted(in_threads(12, lambda: acquire_task_lock("report"))) == [False] * 11 + [True]
    limiter, rate = ConcurrencyLimiter("transcode", 2), RateLimiter("mail", "3/h")
    assert sorted(in_threads(8, lambda: limiter.acquire(blocking=False))) == [False] * 6 + [True] * 2
    assert sum(bool(got) for got in in_threads(8, lambda: rate.try_acquire())) == 3

    def waits() -> bool:
        with TaskLock("other", blocking_timeout=60):
            return len(list_all_task_locks()) == 2

    assert in_threads(6, waits) == [True] * 6


def test_the_guard_refuses_a_stale_write_and_a_body_ends_with_its_closing_write(pooler: PgBouncer) -> None:
    overtaken, done = Video.objects.create(), Video.objects.create()

    @model_lock(Video, "video:{pk}", pk="pk", guard=GUARD, release_connections=True)
    def process(pk: int) -> None:
        current_claim().update(progress=50)
        with current_claim().transaction() as row:
            row.refresh_from_db()
            assert row.progress == 50
        if pk == overtaken.pk:
            force_release_task_lock(f"video:{pk}")
            testing.overtake()
        current_claim().update(progress=75)

    process(done.pk)
    assert states(done)[:2] == ("ready", 75)
    with pytest.raises(StaleClaim):
        process(overtaken.pk)
    assert states(overtaken)[:2] == ("processing", 50)


def all_go_on(done: list[int]) -> None:
    """Wait until each has done one more."""
    before = list(done)
    eventually(lambda: all(now > then for now, then in zip(done, before, strict=True)), 60)


@pytest.mark.slow
def test_it_is_killed_while_all_are_in_the_middle_of_something(pooler: PgBouncer) -> None:
    """Whoever asks then may be refused. Everybody goes on, never two at once, and no lock and no connection is left."""
    over, inside = threading.Event(), threading.Semaphore(1)
    done, overlaps = [0] * 4, [0] * 4

    def work(number: int) -> None:
        try:
            while not over.is_set():
                try:
                    with TaskLock("report", blocking_timeout=60, lease=5, on_unavailable="raise") as lock:
                        if not inside.acquire(blocking=False):
                            overlaps[number] += lock.owned()
                            continue
                        done[number] += 1
                        inside.release()
                except TaskLockError:  # while it is away
                    over.wait(0.01)
        finally:
            connections.close_all()

    threads = [threading.Thread(target=work, args=(number,), daemon=True) for number in range(4)]
    for thread in threads:
        thread.start()
    try:
        all_go_on(done)
        for _ in range(3):
            pooler.restart()
            all_go_on(done)
    finally:
        over.set()
        for thread in threads:
            thread.join(60)
    assert not any(thread.is_alive() for thread in threads)
    assert overlaps == [0] * 4
    eventually(lambda: not is_task_locked("report"), 30)
