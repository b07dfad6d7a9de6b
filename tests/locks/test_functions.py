"""The plain functions: a lock by its name alone."""

from __future__ import annotations

import contextlib
import gc
import json
import logging
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta

import pytest

from django_tasklock import (
    BackendUnavailable,
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
from django_tasklock.locks import functions as remembered
from django_tasklock.locks.functions import process_locks
from django_tasklock.locks.heartbeat import heartbeat
from django_tasklock.testing import advance, forget
from tests.support.guards import heard
from tests.support.public import forked, in_store
from tests.support.stores import eventually, renewed, stores


@pytest.fixture(params=["memory"])
def store(request, settings) -> Iterator[str]:
    """The name of the store in force, empty."""
    yield from in_store(request.param, settings)


across = pytest.mark.parametrize("store", stores("redis"), indirect=True)
"""A forked child sees that; it has a memory of its own."""


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


class TestTakingAndReleasing:
    def test_once_taken_it_is_busy_for_everybody_until_it_is_released(self, store, elsewhere):
        assert acquire_task_lock("video:1") is True
        assert acquire_task_lock("video:1") is False
        assert elsewhere(acquire_task_lock, "video:1") is False
        assert release_task_lock("video:1") is True
        assert acquire_task_lock("video:1") is True

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


class TestLapsing:
    def test_without_a_lease_the_ttl_is_the_timeout_which_extending_begins_anew(self, store):
        before = len(heartbeat)
        assert acquire_task_lock("video:1", 100)
        assert len(heartbeat) == before
        assert 90 < get_lock_info("video:1").time_left <= 100
        for timeout, longest in ((500, 500), (None, 100), (timedelta(seconds=5), 5)):
            assert extend_task_lock("video:1", timeout) is True
            assert 0.9 * longest < get_lock_ttl("video:1") <= longest

    def test_it_ends_by_itself(self, store, caplog):
        assert acquire_task_lock("video:1", 100)
        advance(101)
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


class TestSuccessors:
    """Gold standard 8.1: who lost a lock must not release its successor's, nor extend it."""

    def test_a_thread_that_lost_its_lock(self, store, elsewhere):
        assert elsewhere(acquire_task_lock, "video:1", 100)
        advance(101)
        assert acquire_task_lock("video:1")
        assert elsewhere(extend_task_lock, "video:1", 5) is False
        assert elsewhere(release_task_lock, "video:1") is False
        assert get_lock_ttl("video:1") > 100
        assert release_task_lock("video:1") is True


def test_what_lapses_and_is_never_released_is_forgotten_in_the_end_and_what_is_held_is_not(store, monkeypatch):
    monkeypatch.setattr(remembered, "MOST_LAPSED", 20)
    forget()
    assert acquire_task_lock("kept")
    for number in range(100):
        with contextlib.suppress(BackendUnavailable):  # where the machine stalls it has lapsed before that is known
            assert acquire_task_lock(f"cooldown:{number}", 0.01)
        eventually(lambda number=number: not is_task_locked(f"cooldown:{number}"))
        assert len(process_locks) <= 50
    assert len(process_locks.locks) == len(process_locks)
    assert release_task_lock("kept") is True


class TestAsking:
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

    def test_all_of_them_the_next_to_expire_first_and_each_like_a_mapping_for_json(self, store):
        for name, timeout in (("b", 300), ("c", 100), ("a", 200)):
            assert acquire_task_lock(name, timeout)
        info, *others = list_all_task_locks()
        assert [info.name, *(one["name"] for one in others)] == ["c", "a", "b"]
        plain = json.loads(json.dumps(dict(info)))
        assert {**info} == dict(info.items())
        assert plain["ttl"] == info["ttl"] == info.ttl
        assert datetime.fromisoformat(plain["acquired_at"]) == info.acquired_at
        assert info.get("token", 5) == 5
        with pytest.raises(KeyError):
            info["token"]


class TestForcedRelease:
    def test_takes_it_from_whoever_has_it_and_says_so(self, store, caplog):
        assert acquire_task_lock("video:1")
        held = get_lock_info("video:1")
        with heard(signals.lock_forced) as received, caplog.at_level(logging.WARNING, "django_tasklock"):
            assert force_release_task_lock("task_lock:video:1") is True
        assert not is_task_locked("video:1")
        [told] = received
        assert told["sender"] == "video:1"
        assert told["info"].fingerprint == held.fingerprint
        [record] = [record for record in caplog.records if record.levelno == logging.WARNING]
        assert "'video:1' was released by force" in record.getMessage()
        assert held.holder in record.getMessage()
