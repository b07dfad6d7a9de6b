"""What only the memory backend has: one store for the process, a clock to move on, waiters without a server."""

from __future__ import annotations

import gc
import os
import threading
import warnings
from concurrent.futures import ThreadPoolExecutor

import pytest

from django_tasklock.backends.memory import MemoryBackend, advance, reset
from django_tasklock.backends.memory.store import store
from django_tasklock.conf import Settings
from django_tasklock.types import Released, Renewal, RenewalResult
from tests.support.stores import an_ask, eventually, granted


@pytest.fixture
def backend():
    reset()
    yield MemoryBackend(Settings())
    reset()


def test_reset_forgets_every_lock_but_no_fence(backend):
    mine = an_ask("video:1")
    before = granted(backend.acquire(mine)).fence
    reset()
    assert backend.get("video:1") is None
    assert backend.release("video:1", mine.token) is Released.GONE
    assert granted(backend.acquire(an_ask("video:1"))).fence > before
    assert backend.across_processes is False


def test_advance_lets_a_lease_lapse(backend):
    mine = an_ask("video:1", ttl=60_000)
    backend.acquire(mine)
    advance(59)
    assert backend.renew([Renewal("video:1", mine.token, 60_000)]) == [RenewalResult.RENEWED]
    advance(59)
    assert backend.get("video:1").token == mine.token
    advance(1.001)
    assert backend.get("video:1") is None
    assert backend.renew([Renewal("video:1", mine.token, 60_000)]) == [RenewalResult.LOST]
    assert [record.name for record in backend.records("orphaned")] == ["video:1"]


def test_advance_wakes_who_waits_for_a_lapse(backend):
    backend.acquire(an_ask("video:1", ttl=60_000))
    mine = an_ask("video:1")
    with backend.waiter(mine) as waiter, ThreadPoolExecutor(1) as pool:
        waiter.acquire()
        waits = pool.submit(waiter.wait, 60)
        advance(61)
        waits.result(20)
        granted(waiter.acquire())


def test_a_waiter_whose_thread_has_ended_does_not_delay_others(backend):
    holder, mine = an_ask("video:1"), an_ask("video:1")
    backend.acquire(holder)

    def join_and_die():
        backend.waiter(an_ask("video:1")).acquire()

    for _ in range(20):
        thread = threading.Thread(target=join_and_die)
        thread.start()
        thread.join()
    with backend.waiter(mine) as waiter:
        waiter.acquire()
        backend.release("video:1", holder.token)
        eventually(lambda: waiter.wait(5), seconds=10)  # the second of one of them, not of twenty
    assert backend.get("video:1").token == mine.token


def test_a_lock_released_by_the_garbage_collector_inside_a_verb_does_not_hang(backend):
    mine = an_ask("video:1")
    backend.acquire(mine)

    class ReleasedWhenDropped:
        def __del__(self):
            backend.release("video:1", mine.token)

    with store.mutex:
        ReleasedWhenDropped()
        gc.collect()
    assert backend.get("video:1") is None


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_starts_without_its_parents_locks(backend):
    mine = an_ask("video:1")
    backend.acquire(mine)
    reading, writing = os.pipe()
    with store.mutex, warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of forking beside threads, which is the point
        child = os.fork()
        if child == 0:
            found = backend.get("video:1")
            os.write(writing, b"free" if found is None else b"held")
            os._exit(0)
    os.close(writing)
    assert os.read(reading, 10) == b"free"
    os.close(reading)
    assert os.waitpid(child, 0)[1] == 0
    assert backend.get("video:1").token == mine.token
