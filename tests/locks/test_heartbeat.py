"""The heartbeat: renewed, lost or unknown; one thread; and nobody is told too late, twice or wrongly."""

from __future__ import annotations

import gc
import logging
import math
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import redis

from django_tasklock import LockLost, TaskLock, TaskLockError, force_release_task_lock, signals
from django_tasklock.backends import get_backend
from django_tasklock.health.store import check_locks
from django_tasklock.locks.heartbeat import GONE, heartbeat
from django_tasklock.types import Released, Renewal, monotonic
from tests.support.guards import heard
from tests.support.redis_server import RedisServer
from tests.support.stores import an_ask, eventually, granted, renewed
from tests.support.workers import Crew, Trips

pytest_plugins = ["tests.support.redis_fixtures", "tests.support.worker_fixtures"]
pytestmark = pytest.mark.redis

Store = redis.Redis  # of bytes
Renew = Callable[[Any], list[bool]]


def left(store: Store, name: str) -> float:
    """Seconds the lock's key has; negative without one."""
    return float(store.pttl(f"task_lock:{name}")) / 1000


@contextmanager
def renewing(through: Callable[[Renew, list[Renewal]], list[bool]]) -> Iterator[None]:
    """Renewals of this process go through ``through(renew, batch)``."""
    backend = get_backend()
    renew = backend.renew
    backend.renew = lambda batch: through(renew, list(batch))  # type: ignore[method-assign]
    try:
        yield
    finally:
        del backend.renew  # type: ignore[method-assign]


def hasten(*locks: TaskLock) -> None:
    """Their renewals are due now, and not after a third of the lease."""
    for lock in locks:
        lease = lock.require_lease()
        lease.renew_at = monotonic()
        heartbeat.follow(lease)


class Told:
    """Everything through which a loss is told, for one lock."""

    def __init__(self, name: str, **options: Any) -> None:
        self.reasons: list[str] = []
        self.lock = TaskLock(name, on_lost=self.reasons.append, **options)

    def once(self, reason: str, received: list[dict[str, Any]]) -> None:
        """It is told, in every way, once, and stays so."""
        eventually(lambda: self.reasons and any(details["sender"] == self.lock.name for details in received))
        time.sleep(0.3)
        assert self.reasons == [reason]
        mine = [details for details in received if details["sender"] == self.lock.name]
        assert [(details["lock"], details["reason"]) for details in mine] == [(self.lock, reason)]
        assert (self.lock.lost, self.lock.held) == (True, False)
        with pytest.raises(LockLost, match=reason):
            self.lock.ensure_held()


# Renewed


def test_it_begins_with_the_first_lease_and_ends_after_the_last(crew: Crew, name: str) -> None:
    threads = "[thread.name for thread in threading.enumerate() if thread.name == 'tasklock-heartbeat']"
    worker = crew.hire("from django_tasklock.locks import heartbeat as module\nmodule.LINGER = 0.3")
    assert worker.do(threads) == []
    for _ in range(2):
        worker.do(f"one, two = TaskLock({name!r}, lease=60), TaskLock({name!r} + '2', lease=60)\none.acquire()")
        assert worker.do(threads) == ["tasklock-heartbeat"]
        worker.do("two.acquire()\none.release()\ntime.sleep(0.9)")
        assert worker.do(threads) == ["tasklock-heartbeat"]
        assert worker.do("two.held, two.release()") == (True, Released.RELEASED)
        worker.do("eventually(lambda: not heartbeat.alive)")
        worker.do(f"eventually(lambda: not {threads})")


def test_a_lease_taken_as_the_thread_ends_is_renewed(crew: Crew, name: str) -> None:
    """Forced: the lock is taken when the thread has decided to end, and is not gone."""
    worker = crew.hire(f"""
        from django_tasklock.locks import heartbeat as module
        module.LINGER = 0.05
        real = heartbeat.end
        late = []
        def end(me):
            ended = real(me)
            if ended and not late:
                late.append(TaskLock({name!r}, lease=4))
                assert late[0].acquire()
            return ended
        heartbeat.end = end
        with TaskLock({name!r} + "first", lease=60):
            pass
        eventually(lambda: late and late[0].held)
        deadline = late[0].lease.deadline
        eventually(lambda: late[0].lease.deadline > deadline)
    """)
    assert worker.do("len(heartbeat), heartbeat.alive") == (1, True)
    assert not TaskLock(name).acquire()


@pytest.mark.slow
def test_ten_thousand_locks_one_thread_and_bounded_memory(crew: Crew, store: Store, trips: Trips, name: str) -> None:
    """Gold standard 8.13."""
    number, lease = 10_000, 15.0
    worker = crew.hire("import resource\nmemory = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss")
    before = worker.do("memory()")
    worker.do(
        f"""
        heartbeats = lambda: [one.name for one in threading.enumerate()].count("tasklock-heartbeat")
        locks = [TaskLock(f"{name}:{{i}}", lease={lease}) for i in range({number})]
        assert all([lock.acquire() for lock in locks])
        """,
        120,
    )
    held = worker.do("memory()")
    assert held - before < number * 5  # kB
    with trips:
        began = time.monotonic()
        time.sleep(lease * 1.2)
        took = time.monotonic() - began
    assert trips.number < 150 * (took / (lease / 3) + 1)  # in batches of 100
    assert worker.do("heartbeats(), len(heartbeat)") == (1, number)
    assert worker.do("all([lock.held for lock in locks])")
    assert worker.do("memory()") - held < 10_000
    assert left(store, f"{name}:0") > 0 < left(store, f"{name}:{number - 1}")
    assert worker.do("all([lock.release() for lock in locks])", 120)
    assert worker.do("len(heartbeat), len(heartbeat.reconciler.leftovers)") == (0, 0)


def test_the_store_is_asked_once_a_second_at_most_whether_a_lock_is_held(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend, asked = get_backend(), []
    get_held = backend.get_held

    def noted(name: str, token: str) -> Any:
        asked.append(name)
        return get_held(name, token)

    monkeypatch.setattr(backend, "get_held", noted)
    with TaskLock(name) as lock:
        began = time.monotonic()
        for _ in range(20):
            lock.ensure_held()
        assert 1 <= len(asked) <= 1 + (time.monotonic() - began)


# Released


@pytest.mark.parametrize("before", [True, False], ids=["before the store renews", "after it"])
def test_a_lock_released_while_its_renewal_is_on_its_way_does_not_come_back(
    store: Store, name: str, before: bool, warnings_logged: Callable[[], list[str]]
) -> None:
    """Gold standard 8.7."""
    lock, outcome = TaskLock(name, lease=60), []

    def release_in_the_middle(renew: Renew, batch: list[Renewal]) -> list[bool]:
        if outcome or all(item.name != name for item in batch):
            return renew(batch)
        answers = [] if before else renew(batch)
        outcome.append(lock.release())
        return renew(batch) if before else answers

    with TaskLock(f"{name}:other", lease=60) as other, heard(signals.lock_lost, name) as received:
        with renewing(release_in_the_middle):
            assert lock.acquire()
            hasten(lock)
            eventually(lambda: outcome)
        renews_at_once(other)  # the round in which it was released is over
    assert outcome == [Released.RELEASED]
    assert not store.exists(f"task_lock:{name}")
    assert not received
    assert not lock.lost
    assert not [line for line in warnings_logged() if name in line]


def test_an_expired_lock_is_not_created_again(store: Store, name: str) -> None:
    """Gold standard 8.9: A's key ends, B acquires and releases, A's renewals go on."""
    told = Told(name, lease=60)
    with heard(signals.lock_lost, name) as received:
        assert told.lock.acquire()
        store.delete(f"task_lock:{name}")
        backend, other = get_backend(), an_ask(name)
        granted(backend.acquire(other))
        assert backend.release(name, other.token) is Released.RELEASED
        hasten(told.lock)
        told.once(GONE, received)
    assert not store.exists(f"task_lock:{name}")
    assert told.lock.release() is Released.GONE


def test_a_lock_dropped_without_a_release_is_not_renewed(
    store: Store, name: str, warnings_logged: Callable[[], list[str]]
) -> None:
    """Nobody has its lease any more. It does not take a garbage collection to see that, and the log says so."""
    before = len(heartbeat)
    store.script_flush()  # the first acquisition after that is answered by an error, whose traceback has the lock
    gc.disable()
    try:
        assert TaskLock(name, lease=60).acquire()
        line = sys._getframe().f_lineno - 1
        with pytest.raises(TaskLockError, match="not held through this object"):
            TaskLock(name).release()
        heartbeat.wake_thread()
        eventually(lambda: len(heartbeat) == before)
    finally:
        gc.enable()
    assert store.exists(f"task_lock:{name}")  # until its lease ends
    (warned,) = [one for one in warnings_logged() if f"{name!r} was not released" in one]
    assert "nothing has its lease any more" in warned
    assert f"acquired in {__file__}, line {line};" in warned


def test_a_dropped_lock_without_a_timeout_is_kept_by_its_process(
    store: Store, name: str, warnings_logged: Callable[[], list[str]]
) -> None:
    """As a scheduler takes it that must be the only one, in a function that ends."""
    thread = threading.Thread(target=lambda: TaskLock(name, timeout=None, lease=4).acquire())
    thread.start()
    thread.join()
    renewed(name)
    eventually(lambda: any("renews it until it ends" in one for one in warnings_logged()), 30)
    assert len([one for one in warnings_logged() if f"{name!r} was not released" in one]) == 1
    assert force_release_task_lock(name)
    eventually(lambda: not any(lease.name == name for lease in heartbeat.leases()), 30)


# Lost


def test_a_lock_that_is_released_by_force_is_told_once(store: Store, name: str) -> None:
    told = Told(name, lease=60)
    with heard(signals.lock_lost, name) as received:
        assert told.lock.acquire()
        assert (told.lock.lost, told.lock.held) == (False, True)
        told.lock.ensure_held()
        assert force_release_task_lock(name)
        hasten(told.lock)
        told.once(GONE, received)
    assert told.lock.release() is Released.GONE
    assert len(received) == 1


def test_a_lock_ends_at_its_timeout_and_reports_that_once(store: Store, name: str) -> None:
    """Gold standard 8.10."""
    told = Told(name, lease=3, timeout=3)
    with heard(signals.lock_lost, name) as received:
        assert told.lock.acquire()
        eventually(lambda: told.reasons or hasten(told.lock))  # however often it is renewed
        told.once("its timeout is over", received)
    assert not store.exists(f"task_lock:{name}")
    assert told.lock.time_left == 0
    assert told.lock.release() is Released.GONE


def test_a_store_that_is_silent_to_the_deadline_means_lost_once(
    configure: Any, redis_server: RedisServer, name: str
) -> None:
    """Gold standard 8.8: unknown until then, certain from then on, whatever the store says later."""
    configure(LOCATION=redis_server.url)
    told = Told(name, lease=2)
    assert redis_server.process is not None
    with heard(signals.lock_lost, name) as received:
        assert told.lock.acquire()
        os.kill(redis_server.process.pid, signal.SIGSTOP)
        try:
            told.once("it could not be renewed in time", received)
        finally:
            os.kill(redis_server.process.pid, signal.SIGCONT)
    assert told.lock.release() is not Released.RELEASED
    assert len(received) == 1


def test_on_lost_is_called_before_the_signal_and_neither_delays_other_leases(store: Store, name: str) -> None:
    """Each ends a body that runs without its lock. A listener that fails keeps nobody from being told."""
    unblock, told = threading.Event(), []

    def fails(reason: str) -> None:
        told.append(reason)
        raise RuntimeError("for this test")

    def block(sender: str, **details: Any) -> None:
        unblock.wait(60)

    kept = TaskLock(f"{name}:kept", lease=60)
    locks = [TaskLock(f"{name}:{number}", lease=60, on_lost=fails) for number in range(4)]
    signals.lock_lost.connect(block)
    try:
        assert all(lock.acquire() for lock in (kept, *locks))
        for some in (locks[:3], locks[3:]):
            store.delete(*(f"task_lock:{lock.name}" for lock in some))
            hasten(*some)
            eventually(lambda some=some: len(told) >= len(some))
            renews_at_once(kept)
        eventually(lambda: len(told) == len(locks))
    finally:
        unblock.set()
        signals.lock_lost.disconnect(block)
        for lock in (kept, *locks):
            lock.release()


def test_a_body_that_keeps_the_interpreter_to_itself_loses_the_lock_and_sees_that_at_once(
    crew: Crew, store: Store, name: str
) -> None:
    """Gold standard 8.11. One C call, so that no other thread runs, for longer than the lease."""
    worker = crew.hire(f"""
        import ctypes, logging
        class Lines(logging.Handler):
            def emit(self, record):
                lines.append(record.getMessage())
        lines = []
        logging.getLogger("django_tasklock").addHandler(Lines())
        lock = TaskLock({name!r}, lease=2)
        assert lock.acquire()
        hog = lambda: (ctypes.PyDLL(None).usleep(4_000_000), lock.lost)
    """)
    assert worker.do("hog()") == (0, True)
    assert not store.exists(f"task_lock:{name}")
    worker.do("eventually(lambda: any('is lost' in line for line in lines))")
    with pytest.raises(LockLost, match="could not be renewed in time"):
        worker.do("lock.ensure_held()")  # after the heartbeat, which would know no lease that was late
    *late, told = worker.do("lines")  # on a busy machine it was late before that, too
    assert "s late for 1 leases, that of" in late[-1]
    assert name in late[-1]
    assert "is lost while its holder runs: it could not be renewed in time" in told


# Whatever happens to the thread


class Raising(logging.Filter):
    """Whoever says something to it is told off."""

    def filter(self, record: logging.LogRecord) -> bool:
        raise ZeroDivisionError("from a filter, for this test")


@contextmanager
def no_log() -> Iterator[None]:
    """Nothing can be logged."""
    trouble, logger = Raising(), logging.getLogger("django_tasklock")
    logger.addFilter(trouble)
    try:
        yield
    finally:
        logger.removeFilter(trouble)


def renews_at_once(lock: TaskLock) -> None:
    """It is due now, and is renewed."""
    hold = lock.require_lease()
    before = hold.deadline
    hasten(lock)
    eventually(lambda: hold.deadline > before)
    assert heartbeat.alive


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_neither_logging_nor_any_exception_ends_the_renewals(name: str) -> None:
    failed = threading.Event()

    def fails_once(renew: Renew, batch: list[Renewal]) -> list[bool]:
        if failed.is_set():
            return renew(batch)
        failed.set()
        raise SystemExit

    with TaskLock(name, lease=60) as lock:
        with no_log(), renewing(fails_once):
            hasten(lock)
            assert failed.wait(20)
            renews_at_once(lock)
        renews_at_once(lock)


def test_one_that_is_dead_is_seen_and_started_again_and_that_is_said(
    name: str, warnings_logged: Callable[[], list[str]]
) -> None:
    with TaskLock(name, lease=60) as lock:
        before, dead = heartbeat.thread, threading.Thread(target=lambda: None)
        assert before is not None
        dead.start()
        dead.join()
        heartbeat.thread = dead
        heartbeat._wake.put(None)  # the one before sees that it is not wanted any more
        before.join()
        facts = check_locks()
        assert (facts["healthy"], facts["heartbeat"]["alive"]) == (False, False)
        lock.ensure_held()
        assert heartbeat.alive
        assert "heartbeat: its thread had died, another one was started" in warnings_logged()
        renews_at_once(lock)


def test_where_no_thread_can_be_started_a_lock_is_as_good_as_its_lease(
    name: str, monkeypatch: pytest.MonkeyPatch, warnings_logged: Callable[[], list[str]]
) -> None:
    """As at the end of a process, in Python 3.12, or where a container has no room for another thread."""
    before, heartbeat.thread = heartbeat.thread, None
    if before is not None:
        heartbeat._wake.put(None)  # it sees that it is not wanted any more
        before.join()
    heartbeat._wakes_at = math.inf

    def start(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as full:
        full.setattr(threading.Thread, "start", start)
        lock = TaskLock(name, lease=60)
        assert lock.acquire()
        assert "heartbeat: not started, so no lease is renewed: can't start new thread" in warnings_logged()
        lock.ensure_held()
        assert not heartbeat.alive
    lock.ensure_held()
    renews_at_once(lock)
    assert lock.release() is Released.RELEASED
