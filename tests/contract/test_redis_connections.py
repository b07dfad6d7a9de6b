"""Connections to Redis: what is interrupted is never used again, deadlines hold, and a crowd leaves few behind."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
import redis

from django_tasklock import BackendUnavailable, TaskLock, backends
from django_tasklock.backends import get_backend
from django_tasklock.backends.contract.threads import MOST
from django_tasklock.backends.redis import RedisBackend, client
from django_tasklock.backends.redis.client import MAX_IDLE
from django_tasklock.conf import Settings
from tests.support.proxy import Proxy
from tests.support.redis_server import RedisServer
from tests.support.stores import an_ask, eventually, granted, new_token

pytest_plugins = ["tests.support.redis_fixtures"]
pytestmark = pytest.mark.redis

REDIS_PY = str(Path(redis.__file__).parent), client.__file__
DATABASE = 3


class Struck(Exception):
    """A soft time limit, as Celery raises it out of a signal handler. Not a ``BaseException``."""


@contextlib.contextmanager
def struck_at(step: int) -> Iterator[Callable[[], bool]]:
    """Raise ``error`` before the ``step``-th line of redis-py, or of ours in its place; whether it came to that."""
    lines = count(1)
    done = False

    def trace(frame: FrameType, event: str, argument: object) -> Any:
        nonlocal done
        if not frame.f_code.co_filename.startswith(REDIS_PY):
            return None
        if event == "line" and next(lines) == step:
            done = True
            raise Struck
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        yield lambda: done
    finally:
        sys.settrace(before)


def database(number: int, url: str) -> redis.Redis:
    """One database of that server, asked directly."""
    return redis.Redis.from_url(url.rpartition("/")[0] + f"/{number}")


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # of redis-py's socket, struck bare
def test_a_time_limit_at_any_line_of_connecting(redis_server: RedisServer, name: str) -> None:
    """Whatever is left half-made is not used by the next lock: it is in the right database, whoever was struck."""
    location = redis_server.url.rpartition("/")[0] + f"/{DATABASE}"
    with database(0, location) as wrong, database(DATABASE, location) as right:
        for step in count(1, 5):
            backend = RedisBackend(Settings(LOCATION=location))
            _ = backend.client
            with struck_at(step) as struck, contextlib.suppress(Struck, BackendUnavailable):
                backend.acquire(an_ask(f"{name}:struck:{step}"))
            if not struck():
                break
            granted(backend.acquire(an_ask(f"{name}:{step}")))
            assert right.exists(f"task_lock:{name}:{step}"), f"struck at line {step}: it is in another database"
            backend.close()
        backend.close()
        assert step > 50, "nothing was struck"
        assert not wrong.keys("*")


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # redis-py's pool, struck in __del__
def test_a_time_limit_at_any_line_of_a_request(
    redis_server: RedisServer, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Wherever it strikes, its reply is never read by the next request."""
    monkeypatch.setattr(client, "RESTED", 60.0)  # a look at an idle connection would find the unread reply
    backend = RedisBackend(Settings(LOCATION=redis_server.url))
    mine = an_ask(f"{name}:held")
    granted(backend.acquire(mine))
    for step in count(1):
        assert backend.get(name) is None
        with struck_at(step) as struck, contextlib.suppress(Struck):
            backend.get(mine.name)
        assert backend.get(name) is None, f"struck at line {step}: it read the reply of another request"
        if not struck():
            break
    assert step > 20, "nothing was struck"
    found = backend.get(mine.name)
    assert found is not None
    assert found.token == mine.token
    backend.close()


def test_signals_do_not_put_off_the_deadline(proxy: Proxy, name: str) -> None:
    """Profilers, SIGCHLD: each interrupts the wait for a silent store, and none begins it anew."""
    get_backend().get(name)
    proxy.hang()
    signals = 0

    def ticked(number: int, frame: object) -> None:
        nonlocal signals
        signals += 1
        assert signals < 1000, "it waits for ever"

    before = signal.signal(signal.SIGALRM, ticked)
    signal.setitimer(signal.ITIMER_REAL, 0.02, 0.02)
    try:
        with pytest.raises(BackendUnavailable):
            get_backend().get(name)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert signals > 10


CROWD = 60


def test_a_crowd_of_threads_leaves_few_connections(
    proxy: Proxy, store: redis.Redis, stranger: RedisBackend, name: str
) -> None:
    token = new_token()
    granted(stranger.acquire(an_ask(name, token)))

    def taken() -> None:
        lock = TaskLock(name)
        assert lock.acquire(blocking_timeout=60)
        lock.release()

    with ThreadPoolExecutor(CROWD) as crowd:
        waiting = [crowd.submit(taken) for _ in range(CROWD)]
        eventually(lambda: store.zcard(f"task_lock#queue:{name}") == CROWD, 30)
        eventually(lambda: proxy.open <= MAX_IDLE + 2, 30)  # one to listen, and the heartbeat's
        stranger.release(name, token)
        for one in waiting:
            one.result(60)
    eventually(lambda: proxy.open <= MAX_IDLE + 2)


def test_a_process_may_open_as_many_connections_as_its_life_needs(proxy: Proxy, name: str) -> None:
    """redis-py's pool counts those that it has ever made, and by default refuses the hundred and first."""
    lock = TaskLock(name)
    for _ in range(120):
        assert lock.acquire()
        lock.release()
        proxy.cut()
    assert proxy.accepted > 110


class TestCoroutinesShare:
    """A few threads, each with a connection, however many coroutines there are."""

    def test_those_who_wait(self, proxy: Proxy, store: redis.Redis, stranger: RedisBackend, name: str) -> None:
        token = new_token()
        granted(stranger.acquire(an_ask(name, token)))

        async def one() -> None:
            async with TaskLock(name, blocking_timeout=60):
                pass

        async def main() -> None:
            waiting = [asyncio.create_task(one()) for _ in range(50)]
            await asyncio.to_thread(eventually, lambda: store.zcard(f"task_lock#queue:{name}") == 50, 30)
            async with TaskLock(f"{name}:other"):  # none of them holds a thread
                pass
            stranger.release(name, token)
            await asyncio.gather(*waiting)

        asyncio.run(main())
        assert proxy.accepted <= MOST + 2, "one to listen, and the heartbeat's"

    def test_a_release_is_made_though_its_coroutine_is_cancelled_in_line(
        self, stranger: RedisBackend, name: str
    ) -> None:
        token, free = new_token(), threading.Event()
        granted(stranger.acquire(an_ask(name, token)))

        async def main() -> None:
            others = [asyncio.create_task(stranger.in_thread(free.wait)) for _ in range(MOST)]
            await asyncio.sleep(0)
            release = asyncio.create_task(stranger.arelease(name, token))
            await asyncio.sleep(0)
            release.cancel()
            with pytest.raises(asyncio.CancelledError):
                await release
            assert stranger.get(name)
            free.set()
            await asyncio.gather(*others)

        asyncio.run(main())
        eventually(lambda: stranger.get(name) is None)


def test_threads_that_come_first_together_make_one_backend(settings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The connections of a second one would be nobody's."""
    settings.TASKLOCK = {"BACKEND": "django_tasklock.backends.memory.MemoryBackend"}
    entered, gate, made = threading.Semaphore(0), threading.Event(), backends._create

    def slowly() -> backends.LockStore:
        entered.release()
        gate.wait(10)
        return made()

    monkeypatch.setattr(backends, "_create", slowly)
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(get_backend)
        assert entered.acquire(timeout=10)
        second = pool.submit(get_backend)
        alone = not entered.acquire(timeout=0.2)
        gate.set()
        assert first.result(10) is second.result(10)
    assert alone
