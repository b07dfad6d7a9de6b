"""The plain functions: a lock by its name alone."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import logging
import math
import os
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from itertools import pairwise

import pytest
from django.core.serializers.json import DjangoJSONEncoder

from django_tasklock import (
    BackendUnavailable,
    LockInfo,
    TaskLock,
    acquire_task_lock,
    extend_task_lock,
    force_release_task_lock,
    get_lock_holder,
    get_lock_info,
    get_lock_ttl,
    is_task_locked,
    list_all_task_locks,
    release_task_lock,
    signals,
)
from django_tasklock.backends import get_backend
from django_tasklock.backends.contract import lists
from django_tasklock.locks import functions as remembered
from django_tasklock.locks.functions import process_locks
from django_tasklock.locks.heartbeat import heartbeat
from django_tasklock.testing import forget
from tests.support.public import Received, forked, in_store, raw_redis, setting, stored
from tests.support.stores import an_ask, eventually, granted, renewed, stores

SHORT = 0.2  # seconds: a timeout that is to lapse, and not before the store has answered


@pytest.fixture(params=["memory"])
def store(request, settings) -> Iterator[str]:
    """The name of the store in force, empty."""
    yield from in_store(request.param, settings)


across = pytest.mark.parametrize("store", stores("redis", "database"), indirect=True)
"""A forked child sees these; it has a memory of its own."""


@pytest.fixture
def elsewhere():
    """Runs something in another thread of this process."""
    with ThreadPoolExecutor(1) as other:

        def run(work, *args):
            def and_rest():
                try:
                    return work(*args)
                finally:
                    get_backend().close_idle()

            return other.submit(and_rest).result()

        yield run


def lapse(name: str) -> None:
    eventually(lambda: not is_task_locked(name))


def cool_down(name: str) -> None:
    """Take a lock that lapses, and wait for that: where the machine stalls it has before that is known."""
    with contextlib.suppress(BackendUnavailable):
        assert acquire_task_lock(name, 0.01)
    lapse(name)


class TestTakingAndReleasing:
    def test_once_taken_it_is_busy_for_everybody_until_it_is_released(self, store, elsewhere):
        assert acquire_task_lock("video:1") is True
        assert acquire_task_lock("video:1") is False
        assert elsewhere(acquire_task_lock, "video:1") is False
        assert release_task_lock("video:1") is True
        assert release_task_lock("video:1") is False
        assert acquire_task_lock("video:1") is True

    def test_with_and_without_the_prefix_is_one_lock(self, store):
        assert acquire_task_lock("task_lock:6")
        assert not acquire_task_lock("6")
        assert is_task_locked("6")
        assert is_task_locked("task_lock:6")
        assert [info.name for info in list_all_task_locks()] == ["6"]
        assert get_lock_info("task_lock:6") is not None
        assert extend_task_lock("6")
        assert release_task_lock("6")
        assert not is_task_locked("task_lock:6")

    def test_any_thread_of_the_process_may_release_and_extend(self, store, elsewhere):
        assert acquire_task_lock("video:1")
        assert elsewhere(extend_task_lock, "video:1", 50) is True
        assert elsewhere(release_task_lock, "video:1") is True
        assert not is_task_locked("video:1")
        assert release_task_lock("video:1") is False

    @across
    def test_another_process_can_do_neither(self, store):
        assert acquire_task_lock("video:1")

        def child():
            return (
                is_task_locked("video:1"),
                extend_task_lock("video:1"),
                release_task_lock("video:1"),
                acquire_task_lock("video:1"),
                is_task_locked("video:1"),
            )

        assert forked(child) == (True, False, False, False, True)
        assert release_task_lock("video:1") is True

    def test_two_threads_that_release_at_once_release_once(self, store):
        start = threading.Barrier(4)

        def release(_):
            start.wait(10)
            try:
                return release_task_lock("video:1")
            finally:
                get_backend().close_idle()

        with ThreadPoolExecutor(4) as threads:
            for _ in range(20):
                assert acquire_task_lock("video:1")
                assert sorted(threads.map(release, range(4))) == [False, False, False, True]


class TestLapsing:
    def test_without_a_lease_the_ttl_is_the_timeout_and_nothing_renews_it(self, store):
        before = len(heartbeat)
        assert acquire_task_lock("video:1", 100)
        assert len(heartbeat) == before
        info = get_lock_info("video:1")
        assert 90 < info.ttl <= 100
        assert 90 < info.time_left <= 100
        assert 90 < get_lock_ttl("video:1") <= 100

    def test_it_ends_by_itself(self, store, caplog):
        assert acquire_task_lock("video:1", SHORT)
        lapse("video:1")
        assert list_all_task_locks() == []
        assert extend_task_lock("video:1", 100) is False
        assert not is_task_locked("video:1")
        with caplog.at_level(logging.WARNING, "django_tasklock"):
            assert release_task_lock("video:1") is False
        assert "no longer ours" in caplog.text

    def test_a_lock_that_is_only_remembered_here_is_renewed_all_the_same(self, store):
        """Nobody but the process's memory refers to it; that must be enough for the heartbeat."""
        assert acquire_task_lock("video:1", 100, 4)
        gc.collect()
        renewed("video:1")
        assert release_task_lock("video:1")

    def test_extending_starts_the_timeout_again(self, store):
        assert acquire_task_lock("video:1", 50)
        assert extend_task_lock("video:1") is True
        assert 45 < get_lock_ttl("video:1") <= 50
        assert extend_task_lock("video:1", 500) is True
        assert 490 < get_lock_ttl("video:1") <= 500
        assert extend_task_lock("video:1", timedelta(seconds=5)) is True
        assert get_lock_ttl("video:1") <= 5


class TestSuccessors:
    """Gold standard 8.1: who lost a lock must not release its successor's, nor extend it."""

    def test_a_thread_that_lost_its_lock(self, store, elsewhere):
        assert elsewhere(acquire_task_lock, "video:1", SHORT)
        lapse("video:1")
        assert acquire_task_lock("video:1")
        assert elsewhere(extend_task_lock, "video:1", 5) is False
        assert elsewhere(release_task_lock, "video:1") is False
        assert get_lock_ttl("video:1") > 100
        assert release_task_lock("video:1") is True

    def test_two_asyncio_tasks_of_one_thread(self, store):
        async def loser(lost, told):
            assert acquire_task_lock("video:1", SHORT)
            lapse("video:1")
            lost.set()
            await told.wait()
            return release_task_lock("video:1")

        async def main():
            lost, told = asyncio.Event(), asyncio.Event()
            task = asyncio.create_task(loser(lost, told))
            await lost.wait()
            assert acquire_task_lock("video:1")
            told.set()
            return await task, release_task_lock("video:1")

        assert asyncio.run(main()) == (False, True)


class TestMemory:
    """What the process remembers is bounded, and never less than what it holds."""

    @pytest.fixture(autouse=True)
    def _small(self, settings, monkeypatch):
        monkeypatch.setattr(remembered, "MOST_LAPSED", 20)
        forget()
        yield from in_store("memory", settings)

    def test_what_lapses_and_is_never_released_is_forgotten_in_the_end(self):
        assert acquire_task_lock("kept")
        for number in range(100):
            cool_down(f"cooldown:{number}")
            assert len(process_locks) <= 50
        assert len(process_locks.locks) == len(process_locks)
        assert release_task_lock("kept") is True

    def test_what_is_held_is_never_forgotten(self):
        names = [f"held:{number}" for number in range(300)]
        assert all(acquire_task_lock(name) for name in names)
        assert len(process_locks) == 300
        assert all(release_task_lock(name) for name in names)
        assert list_all_task_locks() == []
        assert len(process_locks) == len(process_locks.locks) == 0


class TestAsking:
    def test_a_free_lock_has_no_holder_and_no_ttl(self, store):
        assert is_task_locked("video:1") is False
        assert get_lock_holder("video:1") is None
        assert get_lock_ttl("video:1") is None
        assert get_lock_info("video:1") is None
        assert list_all_task_locks() == []
        assert force_release_task_lock("video:1") is False
        assert stored(store) == 0

    def test_a_held_lock_has_holder_ttl_and_info(self, store):
        assert acquire_task_lock("video:1", 100)
        assert is_task_locked("video:1") is True
        assert str(os.getpid()) in get_lock_holder("video:1")
        assert 90 < get_lock_ttl("video:1") <= 100
        info = get_lock_info("video:1")
        assert info.name == "video:1"
        assert info.holder == get_lock_holder("video:1")
        assert info.acquired_at.tzinfo is UTC
        assert 0 <= info.held_for < 10
        assert 90 < info.time_left <= 100
        assert info.fence > 0
        assert (info.waiting, info.task, info.task_id) == (0, "", "")

    def test_the_token_is_never_shown(self, store):
        with TaskLock("video:1") as lock:
            shown = repr(get_lock_info("video:1")) + json.dumps([dict(info) for info in list_all_task_locks()])
            assert lock.token not in shown
            assert get_lock_info("video:1").fingerprint in shown

    def test_all_of_them_the_next_to_expire_first(self, store):
        for name, timeout in (("b", 300), ("c", 100), ("a", 200)):
            assert acquire_task_lock(name, timeout)
        assert [info.name for info in list_all_task_locks()] == ["c", "a", "b"]
        assert [info["name"] for info in list_all_task_locks()] == ["c", "a", "b"]

    def test_list_is_complete_beyond_a_page(self, store, monkeypatch):
        held = 250
        monkeypatch.setattr(lists, "PART", 100)
        backend = get_backend()
        for number in range(held):
            granted(backend.acquire(an_ask(f"video:{number}", ttl=3_600_000 + number)))
        found = list_all_task_locks()
        assert len(found) == held
        assert {info.name for info in found} == {f"video:{number}" for number in range(held)}
        assert all(first.ttl <= second.ttl + 1 for first, second in pairwise(found))


class TestLockInfo:
    @pytest.fixture
    def info(self, store) -> LockInfo:
        assert acquire_task_lock("video:1", 100)
        return get_lock_info("video:1")

    def test_reads_like_a_mapping(self, info):
        assert info["ttl"] == info.ttl
        assert "ttl" in info
        assert "token" not in info
        assert info.get("nothing", 5) == 5
        assert len(info) == len(list(info)) == len(dict(info))
        assert {**info} == dict(info) == dict(info.items())
        with pytest.raises(KeyError):
            info["token"]
        with pytest.raises(KeyError):
            info["__class__"]

    def test_is_json_as_it_is(self, info):
        plain = json.loads(json.dumps(dict(info)))
        assert plain == json.loads(json.dumps(dict(info), cls=DjangoJSONEncoder))
        assert plain["name"] == "video:1"
        assert datetime.fromisoformat(plain["acquired_at"]) == info.acquired_at


class TestForcedRelease:
    def test_takes_it_from_whoever_has_it_and_says_so(self, store, caplog):
        assert forked(lambda: acquire_task_lock("video:1")) if store != "memory" else acquire_task_lock("video:1")
        held = get_lock_info("video:1")
        with Received(signals.lock_forced) as received, caplog.at_level(logging.WARNING, "django_tasklock"):
            assert force_release_task_lock("task_lock:video:1") is True
        assert not is_task_locked("video:1")
        [told] = received
        assert told["sender"] == "video:1"
        assert told["info"].fingerprint == held.fingerprint
        [record] = [record for record in caplog.records if record.levelno == logging.WARNING]
        assert "'video:1' was released by force" in record.getMessage()
        assert held.holder in record.getMessage()


class TestConflicts:
    def test_are_told_in_one_line_that_names_the_holder_its_age_and_the_time_left(self, store, caplog):
        assert acquire_task_lock("video:1", 100)
        with Received(signals.lock_conflict) as received, caplog.at_level(logging.INFO, "django_tasklock"):
            assert not acquire_task_lock("video:1")
        [told] = received
        assert (told["sender"], told["action"]) == ("video:1", "skip")
        assert told["error"].holder == get_lock_holder("video:1")
        [record] = caplog.records
        line = record.getMessage()
        assert record.levelno == logging.INFO
        for part in ("skipped", "'video:1'", get_lock_holder("video:1"), "100 s of its timeout left"):
            assert part in line


@pytest.mark.redis
class TestStoreDown:
    @pytest.fixture
    def server(self, redis_server, settings):
        settings.TASKLOCK = {"LOCATION": redis_server.url}
        yield redis_server
        forget()

    def test_a_lock_held_before_the_store_went_down_is_not_forgotten_for_one_run_without(self, server):
        """With the store down the same thread is let in again; the lock it really holds must still be released."""
        assert acquire_task_lock("video:1")
        with raw_redis(server.url) as client:
            held = client.get("task_lock:video:1")
            client.delete("task_lock:video:1")
        server.kill()
        assert acquire_task_lock("video:1") is True
        server.start()
        with raw_redis(server.url) as client:
            client.set("task_lock:video:1", held, ex=100)
        assert release_task_lock("video:1") is False
        assert release_task_lock("video:1") is True


@pytest.mark.redis
class TestStrangeValues:
    """What somebody else put there is somebody's lock."""

    @pytest.fixture(autouse=True)
    def _redis(self, settings):
        yield from in_store("redis", settings)

    @pytest.mark.parametrize("value", ["locked", "", "{", "[1]", '{"token": 5}', "\u2603", "null"])
    def test_a_key_that_is_not_ours(self, value):
        with raw_redis() as client:
            client.set("task_lock:6", value, ex=100)
            assert is_task_locked("6")
            assert not acquire_task_lock("6")
            assert get_lock_holder("6") == "unknown"
            assert 90 < get_lock_ttl("6") <= 100
            assert release_task_lock("6") is False
            assert client.get("task_lock:6") == value
            assert force_release_task_lock("6")
            assert acquire_task_lock("6")

    def test_a_key_without_expiry(self):
        with raw_redis() as client:
            client.set("task_lock:6", "forever")
            assert get_lock_ttl("6") is None
            assert get_lock_info("6").ttl is None
            assert not math.isinf(get_lock_info("6").time_left)
            assert not acquire_task_lock("6")

    def test_a_key_of_another_type_is_no_lock_but_an_error_that_says_so(self, settings):
        settings.TASKLOCK = setting("redis", ON_UNAVAILABLE="raise")
        with raw_redis() as client:
            client.sadd("task_lock:6", "x")
            with pytest.raises(BackendUnavailable, match="WRONGTYPE"):
                acquire_task_lock("6")
            assert client.type("task_lock:6") == "set"

    def test_one_that_was_deleted_by_hand_is_not_listed(self):
        """Gold standard 8.44."""
        assert acquire_task_lock("6")
        assert acquire_task_lock("7")
        with raw_redis() as client:
            client.delete("task_lock:6")
        assert [info.name for info in list_all_task_locks()] == ["7"]
        assert acquire_task_lock("6")
        assert len(list_all_task_locks()) == 2
