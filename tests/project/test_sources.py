"""The code of the documents this package answers: the task-lock rules, the video lock, and a task base for Celery.

Each test does what one of their blocks does, with the same calls and nothing changed but
where the names are imported from.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from celery import Celery
from celery.exceptions import Retry

from django_tasklock import (
    TaskLockAcquireError,
    acquire_task_lock,
    extend_task_lock,
    force_release_task_lock,
    get_lock_holder,
    get_lock_info,
    get_lock_ttl,
    is_task_locked,
    list_all_task_locks,
    release_task_lock,
    task_lock_context,
)
from django_tasklock.backends import get_backend
from django_tasklock.testing import forget
from tests.support.celery_site import journal
from tests.support.celery_site.journal import most_at_once
from tests.support.public import forked, in_store, raw_redis, setting
from tests.support.stores import LISTING, an_ask, granted, stores
from tests.testapp.models import PlainVideo

pytest_plugins = ["tests.support.celery_site.fixtures"]
SITE_TASKS = ["tests.support.celery_site.api_tasks"]

logger = logging.getLogger("tests.sources")
celery = Celery("tests.sources", set_as_current=False)


@pytest.fixture(params=stores(*LISTING))
def store(request, settings) -> Iterator[str]:
    """The name of the store in force, empty."""
    yield from in_store(request.param, settings)


@pytest.fixture
def redis(settings) -> Iterator[object]:
    """A client such as redis-cli, beside the library on the same Redis."""
    with raw_redis() as client:
        for _ in in_store("redis", settings):
            yield client


@pytest.fixture
def held_by_another(store) -> str:
    """Somebody else has lock 6; how people are shown who."""
    ask = an_ask("6", holder='{"host": "worker-1", "pid": 41}')
    granted(get_backend().acquire(ask))
    return "worker-1:41"


def in_a_block_that_raises(task_id: int, work):
    try:
        with task_lock_context(f"task_lock:{task_id}") as acquired:
            assert acquired
            return work()
    except TaskLockAcquireError:
        logger.warning("busy")
        return None


def in_a_block_that_tells(task_id: int, work):
    with task_lock_context(f"task_lock:{task_id}", raise_on_fail=False) as acquired:
        if acquired:
            return work()
        logger.warning("busy")
        return None


@celery.task
def execute_task_in_a_block(task_id: int, work=None, **kwargs):
    lock_key = f"task_lock:{task_id}"
    try:
        with task_lock_context(lock_key):
            return work()
    except TaskLockAcquireError:
        logger.info("task %s runs already", task_id)
        return None


@celery.task
def execute_task_by_hand(task_id: int, work=None, **kwargs):
    lock_key = f"task_lock:{task_id}"
    if not acquire_task_lock(lock_key):
        logger.info("task %s runs already", task_id)
        return None
    try:
        return work()
    finally:
        release_task_lock(lock_key)


TASKS = [execute_task_in_a_block, execute_task_by_hand]


@pytest.mark.parametrize("way", [in_a_block_that_raises, in_a_block_that_tells, *TASKS])
class TestExecuteTask:
    """000, "context manager", both ways; "in a Celery task": the block, and acquire with release."""

    def test_runs_once_at_a_time(self, store, way):
        def work():
            inner = [get_lock_info("task_lock:6")]
            if store != "memory":  # what a second worker would meet
                inner.append(forked(lambda: way(6, work=lambda: pytest.fail("twice"))))
            return inner

        info, *second = way(6, work=work)
        assert info.name == "6"
        assert second in ([], [None])
        assert not is_task_locked("task_lock:6")

    def test_skips_when_busy(self, held_by_another, way):
        assert way(6, work=lambda: pytest.fail("the body must not run")) is None
        assert get_lock_holder("task_lock:6") == held_by_another

    def test_gives_the_lock_back_when_the_work_fails(self, store, way):
        with pytest.raises(ZeroDivisionError):
            way(6, work=lambda: 1 / 0)
        assert way(6, work=lambda: "again") == "again"


@pytest.mark.parametrize("task", TASKS)
def test_run_by_celery_the_holder_is_the_task(store, task):
    result = task.apply(args=(6,), kwargs={"work": lambda: get_lock_info("6")}, task_id="id-1").get()
    assert result.task == task.name
    assert result.task_id == "id-1"
    assert "id-1" in result.holder


class TestFunctionTable:
    """000, "core functions": names, arguments by position, and kinds of answers."""

    def test_all_nine(self, store):
        assert acquire_task_lock("task_lock:6", 1800) is True
        assert acquire_task_lock("task_lock:6", 1800) is False
        assert extend_task_lock("task_lock:6", 3600) is True
        assert is_task_locked("task_lock:6") is True
        assert isinstance(get_lock_holder("task_lock:6"), str)
        assert 1800 < get_lock_ttl("task_lock:6") <= 3600
        assert get_lock_info("task_lock:6")["holder"] == get_lock_holder("task_lock:6")
        assert [lock["name"] for lock in list_all_task_locks()] == ["6"]
        assert release_task_lock("task_lock:6") is True
        assert is_task_locked("task_lock:6") is False
        assert force_release_task_lock("task_lock:6") is False


class TestStaleLocksBlock:
    """000, "monitoring": a coroutine that lists all locks, on every store, inside a running loop."""

    @staticmethod
    async def check_stale_locks():
        stale = []
        locks = list_all_task_locks()
        for lock in locks:
            if lock["ttl"] > 7200:
                logger.warning(f"perhaps stuck: {lock}")  # noqa: G004
                stale.append(lock["name"])
        return stale

    def test_names_those_with_a_long_way_to_go(self, store, caplog):
        assert asyncio.run(self.check_stale_locks()) == []
        assert acquire_task_lock("task_lock:6", 10_000)
        assert acquire_task_lock("task_lock:7", 3600)
        assert asyncio.run(self.check_stale_locks()) == ["6"]
        [record] = [record for record in caplog.records if record.name == logger.name]
        assert "name='6'" in record.getMessage()
        assert "holder=" in record.getMessage()

    def test_the_other_functions_in_a_running_loop(self, store):
        async def main():
            assert acquire_task_lock("task_lock:6", 100)
            assert not acquire_task_lock("task_lock:6")
            assert extend_task_lock("task_lock:6", 200)
            assert get_lock_ttl("task_lock:6") > 100
            assert force_release_task_lock("task_lock:6")
            with task_lock_context("task_lock:6"):
                assert is_task_locked("task_lock:6")
            assert not is_task_locked("task_lock:6")

        asyncio.run(main())


@pytest.mark.redis
class TestRedisCli:
    """000, "troubleshooting", and the scheme of what was there before: ``SET key value NX EX``."""

    def test_get_ttl_and_del(self, redis):
        assert acquire_task_lock("task_lock:6")
        assert 3590 <= redis.ttl("task_lock:6") <= 3600
        assert '"host"' in redis.get("task_lock:6")
        assert redis.delete("task_lock:6") == 1
        assert not is_task_locked("task_lock:6")
        assert list_all_task_locks() == []
        assert release_task_lock("task_lock:6") is False
        assert acquire_task_lock("task_lock:6")

    def test_keys_set_by_hand_and_locks_exclude_each_other(self, redis):
        """While a project moves over, old and new workers run side by side."""
        assert acquire_task_lock("task_lock:1")
        assert redis.set("task_lock:1", "worker-2", nx=True, ex=3600) is None
        assert release_task_lock("task_lock:1")
        assert redis.set("task_lock:1", "worker-2", nx=True, ex=3600) is True
        assert not acquire_task_lock("task_lock:1")
        assert not release_task_lock("task_lock:1")
        assert redis.get("task_lock:1") == "worker-2"

    def test_the_old_releasing_script_leaves_ours_alone(self, redis):
        assert acquire_task_lock("task_lock:1")
        compare_and_delete = (
            "if redis.call('get', KEYS[1]) == ARGV[1] then return redis.call('del', KEYS[1]) end return 0"
        )
        assert redis.eval(compare_and_delete, 1, "task_lock:1", "worker-2") == 0
        assert release_task_lock("task_lock:1")

    def test_the_lock_of_the_second_document(self, redis, settings):
        """Under its own prefix the key is the one its commands name."""
        settings.TASKLOCK = setting("redis", KEY_PREFIX="video_processing_lock:")
        assert acquire_task_lock("video_processing_lock:123", timeout=7200)
        assert "video_processing_lock:123" in redis.keys("video_processing_lock:*")
        assert 7190 <= redis.ttl("video_processing_lock:123") <= 7200
        assert redis.delete("video_processing_lock:123")
        assert not is_task_locked("123")


@pytest.mark.redis
class TestRedisDown:
    """000, "Redis is not available": the work goes on."""

    @pytest.fixture(autouse=True)
    def _down(self, redis_server, settings):
        settings.TASKLOCK = {"LOCATION": redis_server.url}
        redis_server.kill()
        yield
        forget()

    @pytest.mark.parametrize("task", TASKS)
    def test_tasks_run_and_say_so(self, task, caplog):
        started = time.monotonic()
        assert task(6, work=lambda: "worked") == "worked"
        assert time.monotonic() - started < 30, "it waits for what is not there"
        [warning, *_] = [record for record in caplog.records if record.name == "django_tasklock"]
        assert warning.levelno == logging.WARNING
        assert "lock '6'" in warning.getMessage()


def get_video_lock_key(video_id):
    return f"video_processing_lock:{video_id}"


def acquire_video_lock(video_id, timeout=3600):
    return acquire_task_lock(get_video_lock_key(video_id), timeout)


def release_video_lock(video_id):
    release_task_lock(get_video_lock_key(video_id))


def is_video_locked(video_id):
    return is_task_locked(get_video_lock_key(video_id))


class TestVideoHelpers:
    """002: its four helpers, one line each."""

    def test_lock_one_video(self, store):
        assert acquire_video_lock(123) is True
        assert acquire_video_lock(123) is False
        assert is_video_locked(123) is True
        assert is_video_locked(124) is False
        assert acquire_video_lock(124, timeout=7200) is True
        assert release_video_lock(123) is None
        assert is_video_locked(123) is False
        assert is_video_locked(124) is True

    def test_what_the_document_warns_of_does_not_happen(self, store):
        """Its release deletes whatever is there. Gold standard 8.1."""
        successor = an_ask(get_video_lock_key(123))
        assert acquire_video_lock(123)
        assert force_release_task_lock(get_video_lock_key(123))
        granted(get_backend().acquire(successor))
        release_video_lock(123)
        assert is_video_locked(123)


def transcode(video):
    """Stands for ffmpeg; tests replace it."""


@celery.task(bind=True, max_retries=3, default_retry_delay=60)
def process_video(self, video_id):
    if not acquire_video_lock(video_id, timeout=7200):
        logger.warning("video %s is being processed", video_id)
        return {"status": "skipped", "reason": "already_processing"}
    try:
        updated = (
            PlainVideo.objects.filter(id=video_id, status__in=["uploading", "processing", "transcoding"])
            .exclude(hls_file__isnull=False)
            .update(status="processing")
        )
        if updated == 0:
            logger.warning("video %s cannot be processed", video_id)
            return {"status": "skipped", "reason": "invalid_state"}
        transcode(PlainVideo.objects.get(id=video_id))
        return {"status": "success", "video_id": video_id}
    except Exception as error:
        logger.error("video %s failed", video_id)
        if self.request.retries < self.max_retries:
            raise self.retry(exc=error) from error
        return {"status": "error", "reason": str(error)}
    finally:
        release_video_lock(video_id)


@pytest.mark.django_db(transaction=True)
class TestProcessVideo:
    """002, the whole task: lock, conditional update, work, retry, release."""

    @pytest.fixture(params=stores("redis", "database"), autouse=True)
    def _store(self, request, settings):
        yield from in_store(request.param, settings)

    @pytest.fixture
    def video(self):
        return PlainVideo.objects.create()

    def test_works_once(self, video, monkeypatch):
        met = []

        def meanwhile(found):
            met.append((found.status, is_video_locked(found.pk), forked(lambda: process_video(found.pk))))

        monkeypatch.setattr(f"{__name__}.transcode", meanwhile)
        assert process_video(video.pk) == {"status": "success", "video_id": video.pk}
        assert met == [("processing", True, {"status": "skipped", "reason": "already_processing"})]
        assert not is_video_locked(video.pk)

    @pytest.mark.parametrize("done", [{"status": "ready"}, {"hls_file": "v.m3u8"}], ids=["state", "excluded"])
    def test_a_finished_video_is_skipped(self, video, done):
        PlainVideo.objects.update(**done)
        assert process_video(video.pk) == {"status": "skipped", "reason": "invalid_state"}
        assert not is_video_locked(video.pk)

    def test_a_failure_is_retried_with_the_lock_given_back(self, video, monkeypatch):
        monkeypatch.setattr(f"{__name__}.transcode", lambda video: 1 / 0)
        sent = []
        monkeypatch.setattr("celery.canvas.Signature.apply_async", lambda *args, **kwargs: sent.append(args))
        process_video.push_request(args=(video.pk,), kwargs={}, id="id-1", called_directly=False, retries=0)
        try:
            with pytest.raises(Retry):
                process_video.run(video.pk)
        finally:
            process_video.pop_request()
        assert len(sent) == 1
        assert not is_video_locked(video.pk)

    def test_the_last_failure_is_the_result(self, video, monkeypatch):
        monkeypatch.setattr(f"{__name__}.transcode", lambda video: 1 / 0)
        result = process_video.apply(args=(video.pk,), retries=3).get()
        assert result == {"status": "error", "reason": "division by zero"}
        assert not is_video_locked(video.pk)


@pytest.mark.redis
def test_its_cache_configuration_is_enough(settings):
    """002, "configuration": a Redis cache with a KEY_PREFIX, and no setting of ours."""
    url = settings.TASKLOCK["LOCATION"]
    cache = {"BACKEND": "django.core.cache.backends.redis.RedisCache", "LOCATION": url, "KEY_PREFIX": "video_web"}
    settings.CACHES = {"default": {**cache, "TIMEOUT": 3600}}
    settings.TASKLOCK = {}
    with raw_redis() as client:
        client.flushdb()
        assert acquire_video_lock(123)
        assert client.exists("task_lock:video_processing_lock:123")
        settings.CACHES = {"default": {**cache, "VERSION": 2}}  # a deploy must not hand every lock out twice
        assert not acquire_video_lock(123)
        client.flushdb()
    forget()


@pytest.fixture
def test(celery_site):
    """004: ``@celery.task(name="tasks1", base=OnceTask) def test(*args, **kwargs): time.sleep(60)``."""
    return celery_site.task("tasks1")


class TestOnceTask:
    """004, on real workers. ``apply()`` stands there, which runs a task in its caller: ``apply_async()`` was meant."""

    @staticmethod
    def wake_up(celery_site) -> None:
        Path(f"{os.environ[journal.ENVIRONMENT]}.gate").touch()

    @pytest.mark.parametrize("word", ["celery_once_enable_retry", "celery_once_enable_wait"])
    def test_its_example(self, celery_site, test, word):
        """The second is rejected, the third waits for the end of the first and runs."""
        worker = celery_site.worker(concurrency=3)
        first = test.apply_async()
        celery_site.started("tasks1")
        second = test.apply_async()
        third = test.apply_async(kwargs={word: True, "celery_once_sleep": 1})
        celery_site.wait_until(lambda: "reject: lock 'tasks1:" in worker.log())
        celery_site.wait_until(lambda: test.lock.info().waiting)
        assert len(celery_site.events("start")) == 1
        self.wake_up(celery_site)
        for result in (first, third):
            assert celery_site.outcome(result)[0] == "SUCCESS"
        starts, ends = celery_site.events("start"), celery_site.events("end")
        assert [event.task_id for event in starts] == [event.task_id for event in ends] == [first.id, third.id]
        assert most_at_once(celery_site.events()) == 1
        assert [event.more for event in starts] == [{"args": [], "kwargs": {}}] * 2
        assert celery_site.outcome(second)[0] == "REVOKED"  # who waits for it is told, on every Celery
        assert not test.lock.is_locked()

    def test_the_arguments_of_its_docstring(self, celery_site, test):
        """A key of the caller's, a time to hold, a time to wait after which the task fails."""
        celery_site.worker(concurrency=3)
        test.apply_async(kwargs={"celery_once_key": "mine", "celery_once_timeout": 100})
        celery_site.started("tasks1")
        info = celery_site.lock("mine")
        assert 50 < info.held_for + info.time_left <= 100
        waits = {"celery_once_key": "mine", "celery_once_enable_wait": True, "celery_once_blocking_timeout": 0.2}
        impatient = test.apply_async(kwargs=waits)
        state, error = celery_site.outcome(impatient)
        assert (state, type(error).__name__) == ("FAILURE", "TaskLockAcquireError")
        other = test.apply_async(kwargs={"celery_once_key": "another"})
        celery_site.started("tasks1", number=2)
        self.wake_up(celery_site)
        assert celery_site.outcome(other)[0] == "SUCCESS"
        celery_site.wait_until(lambda: celery_site.lock("mine") is None, 10)
