"""Who waits for a lock, by name; and what its holder waits for itself."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from django_tasklock import BackendUnavailable, ConcurrencyLimiter, RateLimiter, TaskLock, context, operations
from django_tasklock.backends import get_backend
from django_tasklock.locks.holder import holder_json
from django_tasklock.operations.locks.explanation import explain_awaited
from django_tasklock.types import AcquireRequest, Grant
from tests.support.stores import an_ask, clear, eventually, granted, stores

Waits = Callable[..., None]


@pytest.fixture(params=stores("redis", "memory"))
def store(request: Any, settings: Any) -> str:
    """Stores whose waiters stand in a queue."""
    if request.param == "memory":
        settings.TASKLOCK = {"BACKEND": "django_tasklock.backends.memory.MemoryBackend"}
    clear(request.param)
    return str(request.param)


def somebody(number: int, task: str = "videos.process", **more: Any) -> str:
    """A process far away that runs a task."""
    known = {"host": "far", "pid": number, "boot": f"boot{number}", "task": task, "task_id": f"id-{number}"} | more
    return json.dumps(known, separators=(",", ":"))


def take(name: str, number: int) -> str:
    """Give it the lock; the token."""
    token = f"{number:032x}"
    granted(get_backend().acquire(an_ask(name, token, holder=somebody(number))))
    return token


@contextmanager
def waiting(name: str, *numbers: int, permits: bool = False) -> Iterator[None]:
    """These processes wait for it, in this order."""
    backend = get_backend().permits if permits else get_backend()
    waiters = [
        backend.waiter(AcquireRequest(name, f"{number:032x}", 60_000, 60_000, somebody(number))) for number in numbers
    ]
    try:
        for waiter in waiters:
            assert not isinstance(waiter.acquire(), Grant)
        yield
    finally:
        for waiter in waiters:
            waiter.leave()


def test_who_waits_in_order(store: str) -> None:
    """Who, since when by the store's clock, which task; the rest is counted."""
    take("a", 1)
    with waiting("a", 3, 2, 4):
        page = operations.list_waiters("a")
        assert [one.task_id for one in page.waiters] == ["id-3", "id-2", "id-4"]
        assert (page.total, page.known) == (3, True)
        first = page.waiters[0]
        assert first.holder == "far:3 (videos.process[id-3])"
        assert (first.task, first.present) == ("videos.process", True)
        assert 0 <= first.waited < 30
        assert abs(first.since.timestamp() - time.time()) < 30
        assert len(operations.list_waiters("a", 2).waiters) == 2
        assert operations.list_waiters("a", 2).total == 3
    assert operations.list_waiters("a").waiters == []


def test_no_token_is_told(store: str) -> None:
    take("a", 1)
    with waiting("a", 2):
        assert f"{2:032x}" not in repr(operations.list_waiters("a"))


@pytest.mark.django_db(transaction=True)
def test_polling_waiters_are_not_listed(settings: Any) -> None:
    settings.TASKLOCK = {"BACKEND": "django_tasklock.backends.database.DatabaseBackend"}
    take("a", 1)
    assert operations.list_waiters("a") == operations.WaitersPage([], 0, False)
    assert operations.find_awaited("a") == []


def test_what_the_holder_waits_for(store: str) -> None:
    """Another lock: which one, and who has that; its own task is told from others of the same process."""
    take("a", 1)
    take("b", 2)
    assert operations.find_awaited("a") == []
    with waiting("b", 1):
        [found] = operations.find_awaited("a")
        assert (found.kind, found.name, found.held_by) == ("lock", "b", "far:2 (videos.process[id-2])")
        assert found.sure
        assert operations.find_awaited("b") == []
        assert operations.find_awaited("nobody has it") == []


def test_two_processes_of_two_threads_are_no_deadlock(store: str) -> None:
    """Each has one lock and, in another thread, waits for that of the other: both threads that hold one go on."""
    for name, number in (("a", 1), ("b", 2)):
        granted(get_backend().acquire(an_ask(name, f"{number:032x}", holder=somebody(number, task="", task_id=""))))
    waiters = [
        get_backend().waiter(AcquireRequest(name, f"{number:031x}0", 60_000, 60_000, somebody(number)))
        for name, number in (("b", 1), ("a", 2))
    ]
    for waiter in waiters:
        waiter.acquire()
    try:
        for name, other in (("a", "b"), ("b", "a")):
            [sentence] = explain_awaited(operations.find_awaited(name))
            assert sentence.startswith(f"Its holder's process waits for the lock “{other}”, for ")
    finally:
        for waiter in waiters:
            waiter.leave()


def test_another_delivery_of_its_task_is_another(store: str) -> None:
    """The same id in another process: its message was delivered again."""
    take("a", 1)
    take("b", 2)
    again = somebody(3, task_id="id-1")
    waiter = get_backend().waiter(AcquireRequest("b", "3" * 32, 60_000, 60_000, again))
    waiter.acquire()
    try:
        assert operations.find_awaited("a") == []
    finally:
        waiter.leave()


def test_it_waits_for_a_permit(store: str) -> None:
    take("a", 1)
    taken = get_backend().permits
    granted(taken.acquire(AcquireRequest("transcode", "t" * 32, 60_000, 60_000, somebody(9), limit=1)))
    with waiting("transcode", 1, permits=True):
        [found] = operations.find_awaited("a")
        assert (found.kind, found.name, found.sure) == ("permit", "transcode", True)


def test_another_thread_of_its_process_is_said_to_be_that(store: str) -> None:
    """Without a task there is only the process to go by."""
    held, wanted = TaskLock("a", lease=None), TaskLock("b", lease=None)
    with held:
        take("b", 2)
        thread = threading.Thread(target=wanted.acquire, kwargs={"blocking": True})
        thread.start()
        try:
            eventually(lambda: operations.list_waiters("b").total == 1)
            [found] = operations.find_awaited("a")
            assert (found.name, found.sure) == ("b", False)
        finally:
            get_backend().remove("b")
            thread.join(30)
            wanted.release()


def test_a_permit_by_its_own_class(store: str) -> None:
    """As projects wait for one: the entry in the queue of permits is longer."""
    limiter = ConcurrencyLimiter("transcode", 1)
    get_backend().acquire(an_ask("a", holder=holder_json()))
    with limiter:
        thread = threading.Thread(target=_enter, args=(ConcurrencyLimiter("transcode", 1),))
        thread.start()
        eventually(lambda: operations.find_awaited("a"))
    thread.join(30)


def _enter(limiter: ConcurrencyLimiter) -> None:
    with limiter:
        pass


@pytest.mark.parametrize("coroutine", [False, True], ids=["thread", "coroutine"])
def test_it_waits_for_a_rate(store: str, coroutine: bool) -> None:
    """Who sleeps until a rate lets it go stands in no queue, and notes it of the locks that it has."""
    limiter = RateLimiter("api", "1/2s")
    limiter.acquire()

    def call() -> None:
        with TaskLock("outer"), TaskLock("a"):
            limiter.acquire()

    async def acall() -> None:
        async with TaskLock("outer"), TaskLock("a"):
            await limiter.aacquire()

    caller = threading.Thread(target=lambda: asyncio.run(acall()) if coroutine else call())
    caller.start()
    for name in ("a", "outer"):
        eventually(lambda name=name: operations.find_awaited(name))
        [found] = operations.find_awaited(name)
        assert (found.kind, found.name, found.held_by, found.sure) == ("rate", "api", "", True)
        assert 0 <= found.waited < 60
        assert "the rate limit “api”" in " ".join(map(str, explain_awaited([found])))
    caller.join()
    with TaskLock("a"):  # the note was the other holder's
        assert operations.find_awaited("a") == []


def test_a_long_wait_goes_on_and_one_that_is_over_is_not_told(store: str) -> None:
    token, backend = take("a", 1), get_backend()
    backend.record_wait("a", token, "api", 60_000)
    first = backend.recorded_wait("a", token)
    eventually(lambda: backend.recorded_wait("a", token).now > first.now)
    backend.record_wait("a", token, "api", 60_000)
    assert backend.recorded_wait("a", token).since == first.since
    backend.record_wait("a", token, "another", 60_000)
    assert backend.recorded_wait("a", token).since > first.since
    assert backend.recorded_wait("a", "f" * 32) is None
    backend.record_wait("a", token, "another", 1)
    eventually(lambda: backend.recorded_wait("a", token) is None)


@pytest.mark.parametrize("coroutine", [False, True], ids=["thread", "coroutine"])
def test_each_of_several_names_says_what_their_holder_waits_for(store: str, coroutine: bool) -> None:
    lock = TaskLock("a", "b")
    assert lock.acquire()
    lease = lock.lease
    assert lease is not None
    if coroutine:
        asyncio.run(lease.backend.arecord_wait(lease.name, lease.token, "api", 60_000))
    else:
        lease.backend.record_wait(lease.name, lease.token, "api", 60_000)
    assert [one.name for name in lock.names for one in operations.find_awaited(name)] == ["api", "api"]
    lock.release()


def test_a_wait_that_cannot_be_noted_is_waited_all_the_same(settings: Any, caplog: Any, monkeypatch: Any) -> None:
    settings.TASKLOCK = {"BACKEND": "django_tasklock.backends.memory.MemoryBackend"}
    clear("memory")

    def down(*given: Any) -> None:
        raise BackendUnavailable("down")

    monkeypatch.setattr(get_backend(), "record_wait", down)
    with TaskLock("a"):
        context.sleep(1.01, "api")
    assert "it was not recorded that its holder waits for api: down" in caplog.text
