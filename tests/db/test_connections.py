"""Who opens a database connection for a body, and who gives it back."""

from __future__ import annotations

import asyncio
import gc
import threading
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest
from asgiref.sync import async_to_sync, sync_to_async
from celery import Celery
from django.db import connection, connections, transaction
from django.db.backends.signals import connection_created

from django_tasklock import (
    ConcurrencyLimiter,
    TaskLock,
    TaskLockError,
    arelease_connections,
    concurrency_limited,
    current_claim,
    model_lock,
    release_connections,
    released_connections,
    task_lock,
)
from django_tasklock.celery import OnceTask
from django_tasklock.db.connections import Scope
from django_tasklock.db.pools import figures
from django_tasklock.db.threads import run_to_end
from tests.support.database_pool import checked_out, needs_pool, pooled
from tests.support.guards import AGAIN, GUARD, MEMORY, elsewhere, heard, raw_connection, states
from tests.support.stores import eventually
from tests.testapp.models import Video

pytestmark = [pytest.mark.database, pytest.mark.django_db(transaction=True)]

DATABASE = {"BACKEND": "django_tasklock.backends.database.DatabaseBackend"}


@pytest.fixture(autouse=True)
def _locks_in_memory(settings):
    settings.TASKLOCK = MEMORY
    if figures("default").checked_out > is_open():
        gc.collect()  # threads of other tests have ended without closing theirs, which is in a cycle of Django's
    yield
    assert not Scope.active, "a body was not seen to end"
    connection.close()
    eventually(lambda: figures("default").checked_out == 0)


def is_open():
    """Whether this thread has a connection."""
    return raw_connection() is not None


class TestReleaseConnections:
    def test_says_how_many_there_were_and_leaves_an_open_transaction_alone(self):
        Video.objects.count()
        assert release_connections("another") == 0
        assert is_open()
        assert release_connections() == 1
        assert not is_open()
        with transaction.atomic():
            Video.objects.create()
            assert release_connections() == 0
        transaction.set_autocommit(False)
        try:
            assert release_connections() == 0
            transaction.rollback()
        finally:
            transaction.set_autocommit(True)
        assert Video.objects.count() == 1

    def test_a_coroutines_are_those_of_the_thread_of_its_queries(self):
        async def main():
            await Video.objects.acount()
            opened = await sync_to_async(is_open)()
            return opened, await arelease_connections(), await sync_to_async(is_open)()

        assert asyncio.run(main()) == (True, 1, False)

    def test_a_block_a_function_a_coroutine_and_its_block(self):
        @released_connections()
        def function():
            assert not is_open()
            return Video.objects.count()

        @released_connections("default")
        async def coroutine():
            assert not await sync_to_async(is_open)()
            async with released_connections():
                await Video.objects.acount()
            assert not await sync_to_async(is_open)()
            await Video.objects.acount()

        async def main():
            await Video.objects.acount()
            await coroutine()
            return await sync_to_async(is_open)()

        Video.objects.count()
        with released_connections():
            assert not is_open()
            Video.objects.count()
        assert not is_open()
        assert function() == 0
        assert not is_open()
        assert asyncio.run(main()) is False

    def test_without_its_parentheses_it_is_no_decorator_of_a_function_that_never_runs(self):
        with pytest.raises(TaskLockError, match=r"write released_connections\(\)"):
            released_connections(is_open)


class TestBodies:
    def test_what_a_body_opened_is_closed_at_its_end_and_what_was_open_before_is_left(self):
        @task_lock("connections")
        def work():
            Video.objects.count()
            return raw_connection()

        connection.close()
        assert work() is not None
        assert not is_open()
        Video.objects.count()
        before = raw_connection()
        assert work() is before
        assert raw_connection() is before

    @pytest.mark.parametrize("decorator", [task_lock, partial(concurrency_limited, limit=1)], ids=["lock", "limiter"])
    def test_true_a_long_body_holds_none_that_it_does_not_use(self, decorator):
        @decorator("connections", release_connections=True)
        def work():
            found = [is_open()]
            Video.objects.count()
            return [*found, is_open()]

        Video.objects.count()
        assert work() == [False, True]
        assert not is_open()

    def test_true_and_its_guarded_writes_keep_none(self):
        video = Video.objects.create()

        @model_lock(Video, "connections:{pk}", guard=GUARD, pk="pk", release_connections=True)
        def work(pk):
            claim = current_claim()
            found = []
            for step in (
                lambda: claim.update(progress=40),
                lambda: claim.valid,
                lambda: claim.transaction().__enter__,
            ):
                step()
                found.append(is_open())
            with claim.transaction():
                claim.update(progress=50)
            found.append(is_open())
            for note in Video.objects.iterator(chunk_size=1):  # one that is used is not taken away
                before = raw_connection()
                claim.update(progress=60)
                assert raw_connection() is before, note
            return found

        assert work(video.pk) == [False] * 4
        assert not is_open()
        assert states(video) == ("ready", 60, 1)

    def test_of_a_once_task(self):
        app = Celery("connections", broker="memory://", set_as_current=False)

        @app.task(base=OnceTask, shared=False, release_connections=True)
        def work():
            return is_open()

        Video.objects.count()
        assert work() is False
        assert not is_open()
        with pytest.raises(TaskLockError, match="release_connections"):
            type("Wrong", (OnceTask,), {"run": lambda self: None, "release_connections": "yes"}).on_bound(app)

    def test_a_lock_in_the_database_leaves_none_open_before_a_long_body(self, settings):
        settings.TASKLOCK = DATABASE

        @task_lock("connections", timeout=7200)
        def work():
            return is_open()

        @task_lock("connections", timeout=7200)
        async def coroutine():
            return await sync_to_async(is_open)()

        connection.close()
        assert work() is False
        assert not is_open()
        assert asyncio.run(coroutine()) is False
        assert figures("default").checked_out == 0

    def test_a_lock_belongs_to_no_connection(self, settings):
        """Gold standard 8.41: it neither ends with one, nor is it the next user's of one."""
        settings.TASKLOCK = DATABASE
        lock, permit = TaskLock("report"), ConcurrencyLimiter("report", 1)
        assert lock.acquire()
        assert permit.acquire()
        for _ in range(2):  # on another connection, and on the one that was used last, where there is a pool
            release_connections()
            assert not elsewhere(lambda: TaskLock("report").acquire(blocking=False))
            assert not elsewhere(lambda: ConcurrencyLimiter("report", 1).acquire(blocking=False))
        lock.ensure_held()
        permit.ensure_held()
        permit.release()
        lock.release()
        assert elsewhere(lambda: TaskLock("report").acquire(blocking=False))
        assert elsewhere(lambda: ConcurrencyLimiter("report", 1).acquire(blocking=False))

    def test_an_inner_body_leaves_what_the_outer_one_reads_from(self):
        Video.objects.bulk_create(Video() for _ in range(4))

        @task_lock("connections:inner")
        def inner():
            Video.objects.count()

        @task_lock("connections:outer")
        def outer():
            inner()  # opens it
            assert is_open()
            read = 0
            for _ in Video.objects.iterator(chunk_size=1):
                inner()
                read += 1
            return read

        connection.close()
        assert outer() == 4
        assert not is_open()

    def test_a_body_that_was_skipped_leaves_none(self, settings):
        settings.TASKLOCK = DATABASE

        @task_lock("connections")
        def work():
            pytest.fail("it ran")

        with TaskLock("connections"):
            connection.close()
            result, left = elsewhere(lambda: (work(), is_open()))
        assert result["status"] == "skipped"
        assert not left


def mine(made):
    """How often this thread was it who connected to the database."""
    return sum(one["connection"] is connections["default"] for one in made)


class TestHowOften:
    """A short body is not worth a connection of its own."""

    @pytest.mark.parametrize(("age", "times"), [(0, 10), (None, 1), (600, 1)])
    def test_ten_guarded_calls(self, monkeypatch, age, times):
        video = Video.objects.create()
        monkeypatch.setitem(connection.settings_dict, "CONN_MAX_AGE", age)

        @model_lock(Video, "connections:{pk}", guard=AGAIN)
        def work(pk):
            current_claim().update(progress=40)

        connection.close()
        with heard(connection_created) as made:
            for _ in range(10):
                work(video.pk)
                assert is_open() == (age != 0)
        assert mine(made) == times
        assert states(video) == ("ready", 40, 10)

    @pytest.mark.parametrize(
        ("options", "held", "times"),
        [
            ({"timeout": 3600}, True, 1),
            ({"timeout": 3601}, False, 2),
            ({"release_connections": True}, False, 2),
            ({"timeout": 7200, "release_connections": False}, True, 1),
        ],
        ids=str,
    )
    def test_a_long_body_holds_none(self, options, held, times):
        """Long is one that may run for more than an hour, or says so."""
        video = Video.objects.create()

        @model_lock(Video, "connections:{pk}", guard=AGAIN, **options)
        def work(pk):
            return is_open()

        connection.close()
        with heard(connection_created) as made:
            assert work(video.pk) is held
        assert mine(made) == times
        assert not is_open()


class TestCoroutines:
    def test_what_a_body_opened_is_closed_at_its_end(self):
        @task_lock("connections")
        async def work():
            await Video.objects.acount()
            return await sync_to_async(is_open)()

        async def main():
            return await work(), await sync_to_async(is_open)()

        assert asyncio.run(main()) == (True, False)
        connection.close()
        assert async_to_sync(work)() is True
        assert not is_open()

    def test_bodies_that_overlap_do_not_close_each_others(self):
        """All coroutines of a loop ask the database in one thread, on one connection."""
        Video.objects.bulk_create(Video() for _ in range(5))

        @task_lock("connections:reader")
        async def reader(begun, go_on):
            read = 0
            async for _ in Video.objects.aiterator(chunk_size=1):
                begun.set()
                await go_on.wait()
                read += 1
            return read

        @task_lock("connections:other")
        async def other():
            await Video.objects.acount()

        async def main():
            begun, go_on = asyncio.Event(), asyncio.Event()
            first = asyncio.ensure_future(other())
            reading = asyncio.ensure_future(reader(begun, go_on))
            await first
            await begun.wait()
            await other()
            go_on.set()
            return await reading, await sync_to_async(is_open)()

        assert asyncio.run(main()) == (5, False)

    def test_a_body_that_does_not_ask_the_database_does_not_wait_for_its_thread(self):
        @task_lock("connections")
        async def work():
            return "done"

        async def main():
            go_on = threading.Event()
            busy = asyncio.ensure_future(sync_to_async(go_on.wait)(30))
            try:
                return await asyncio.wait_for(work(), 10)
            finally:
                go_on.set()
                await busy

        assert asyncio.run(main()) == "done"

    def test_threads_of_its_own_are_told_of(self, caplog):
        left = []

        def count():
            Video.objects.count()
            left.append(connections["default"])

        @task_lock("connections")
        async def careless():
            return await asyncio.to_thread(count)

        @task_lock("connections")
        async def careful():
            return await asyncio.to_thread(released_connections()(Video.objects.count))

        asyncio.run(careful())
        assert caplog.text == ""
        asyncio.run(careless())
        assert "left database connections open in threads of its own (default)" in caplog.text
        left[0].inc_thread_sharing()
        left[0].close()

    def test_no_task_is_left_behind(self):
        """The garbage collector would end it, in any thread at any time. That has crashed Python 3.11: it sets context
        variables, maybe in the middle of one's being set."""

        async def main():
            for _ in range(50):
                await run_to_end(len, "")
                assert asyncio.all_tasks() == {asyncio.current_task()}

        asyncio.run(main())

    def test_one_that_is_cancelled_again_and_again_waits_for_its_closing_write(self):
        video = Video.objects.create()
        order = []

        @model_lock(Video, "connections:{pk}", guard=AGAIN, pk="pk")
        async def work(pk, begun):
            begun.set()
            await asyncio.sleep(60)

        async def main():
            begun, slow = asyncio.Event(), threading.Event()
            left = asyncio.ensure_future(work(video.pk, begun))
            await begun.wait()
            busy = asyncio.ensure_future(sync_to_async(slow.wait)(30))
            for _ in range(5):
                left.cancel()
                await asyncio.sleep(0.01)
            order.append(left.done())
            slow.set()
            await asyncio.wait([left, busy])

        asyncio.run(main())
        video.refresh_from_db()
        assert video.lock_token == ""
        assert order == [False]


class TestPool:
    def test_more_tasks_than_connections(self):
        """Long bodies that hold none: 12 of them share two connections."""
        needs_pool()
        videos = [Video.objects.create() for _ in range(12)]
        together = threading.Barrier(12, timeout=30)

        @model_lock(Video, "connections:{pk}", guard=GUARD, pk="pk", release_connections=True)
        def work(pk):
            together.wait()
            current_claim().update(progress=40)
            together.wait()

        with pooled(max_size=2) as pool, ThreadPoolExecutor(12) as threads:
            list(threads.map(work, [video.pk for video in videos]))
            assert checked_out(pool) == 0
        assert {states(video) for video in videos} == {("ready", 40, 1)}


@pytest.mark.django_db(transaction=True)
def test_an_error_while_one_is_closed_is_a_warning(caplog, monkeypatch):
    def close():
        raise OSError("the network is gone")

    Video.objects.count()
    with monkeypatch.context() as patch:
        patch.setattr(connections["default"], "close", close)
        release_connections("default")
    [record] = caplog.records
    assert record.levelname == "WARNING"
    assert record.getMessage() == ("database 'default': while closing a connection: OSError('the network is gone')")
