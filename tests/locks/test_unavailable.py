"""The store refuses, hangs or says no: found out within two seconds, and the policy decides."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import redis

from django_tasklock import (
    BackendUnavailable,
    TaskLock,
    force_release_task_lock,
    get_lock_info,
    is_task_locked,
    list_all_task_locks,
)
from django_tasklock.backends import get_backend
from django_tasklock.locks.heartbeat import heartbeat
from tests.support.proxy import Proxy, scripts
from tests.support.redis_server import RedisServer
from tests.support.stores import an_ask, eventually
from tests.support.twins import TWINS, call

pytest_plugins = ["tests.support.redis_fixtures"]
pytestmark = [pytest.mark.redis, pytest.mark.slow]

PROMISE = 2.0  # seconds until a caller knows
SLACK = 1.0  # what a loaded machine may add
SAYS = [
    "LOADING Redis is loading the dataset in memory",
    "READONLY You can't write against a read only replica.",
    "ERR Error running script (call to f_0): @user_script:9: -READONLY You can't write against a read only replica.",
    "NOPERM this user has no permissions to run the 'evalsha' command",
    "OOM command not allowed when used memory > 'maxmemory'.",
    "NOAUTH Authentication required.",
    "BUSY Redis is busy running a script. You can only call SCRIPT KILL or SHUTDOWN NOSAVE.",
    "MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set to 'no'.",
    "MISCONF Redis is configured to save RDB snapshots, but it's currently unable to persist to disk.",
    "CLUSTERDOWN The cluster is down",
]


def asked_every_way(name: str) -> dict[str, Callable[[], object]]:
    """Every verb of both halves."""
    backend, ask = get_backend(), an_ask(name)

    def twin(verb: Callable[..., Any], *arguments: Any) -> Callable[[], object]:
        return lambda: asyncio.run(verb(*arguments))

    return {
        "acquire": lambda: TaskLock(name).acquire(),
        "wait": lambda: TaskLock(name).acquire(blocking_timeout=60),
        "release": lambda: backend.release(name, ask.token),
        "extend": lambda: backend.extend(name, ask.token, 1000, 1000),
        "get": lambda: get_lock_info(name),
        "is locked": lambda: is_task_locked(name),
        "list": list_all_task_locks,
        "remove": lambda: force_release_task_lock(name),
        "async acquire": twin(TaskLock(name).aacquire),
        "async wait": lambda: asyncio.run(TaskLock(name).aacquire(blocking_timeout=60)),
        "async release": twin(backend.arelease, name, ask.token),
        "async extend": twin(backend.aextend, name, ask.token, 1000, 1000),
        "async get": twin(TaskLock(name).ainfo),
    }


def outcomes(name: str) -> dict[str, tuple[type[BaseException] | None, float]]:
    """What each verb raised, and after how many seconds. They run beside each other."""

    def timed(ask: Callable[[], object]) -> tuple[type[BaseException] | None, float]:
        started = time.monotonic()
        try:
            ask()
        except Exception as error:
            return type(error), time.monotonic() - started
        return None, time.monotonic() - started

    verbs = asked_every_way(name)
    with ThreadPoolExecutor(len(verbs)) as pool:
        return dict(zip(verbs, pool.map(timed, verbs.values()), strict=True))


def all_told_in_time(name: str) -> None:
    """Each verb raises ``BackendUnavailable``, and soon enough."""
    for verb, (error, seconds) in outcomes(name).items():
        assert error is BackendUnavailable, f"{verb}: {error}"
        assert seconds < PROMISE + SLACK, f"{verb} took {seconds:.2f} s"


def test_a_store_that_refuses_connections(proxy: Proxy, name: str) -> None:
    proxy.refuse()
    all_told_in_time(name)


@pytest.mark.parametrize("connected", [True, False], ids=["connected", "new connection"])
def test_a_store_that_hangs(configure: Any, redis_server: RedisServer, name: str, connected: bool) -> None:
    """A stopped server, whose kernel still accepts connections for it."""
    configure(LOCATION=redis_server.url)
    if connected:
        get_backend().get(name)
    assert redis_server.process is not None
    os.kill(redis_server.process.pid, signal.SIGSTOP)
    try:
        all_told_in_time(name)
    finally:
        os.kill(redis_server.process.pid, signal.SIGCONT)


@TWINS
def test_what_a_stopped_server_executes_late_leaves_no_key(
    configure: Any, redis_server: RedisServer, name: str, way: str
) -> None:
    """Gold standard 8.5: the request waited in the socket, and was executed when nobody waited any more."""
    configure(LOCATION=redis_server.url)
    assert redis_server.process is not None
    with redis.Redis.from_url(redis_server.url) as store, TaskLock(f"{name}:first"):
        counted = int(store.get("task_lock#fence"))  # and the server knows the script now

        async def on_one_loop() -> None:
            await get_backend().aget(name)  # a connection that is there already takes the request
            stop()
            with pytest.raises(BackendUnavailable):
                await TaskLock(name).aacquire()

        def stop() -> None:
            assert redis_server.process is not None
            os.kill(redis_server.process.pid, signal.SIGSTOP)

        try:
            if way == "async":
                asyncio.run(on_one_loop())
            else:
                get_backend().get(name)
                stop()
                with pytest.raises(BackendUnavailable):
                    TaskLock(name).acquire()
        finally:
            os.kill(redis_server.process.pid, signal.SIGCONT)
        eventually(lambda: int(store.get("task_lock#fence")) > counted)  # it was granted, late
        eventually(lambda: not heartbeat.reconciler.leftovers)
        assert not store.exists(f"task_lock:{name}")


def test_a_store_that_executes_and_says_nothing(proxy: Proxy, store: redis.Redis, name: str) -> None:
    fault = proxy.fault(scripts("acquire"), times=-1, swallow=True)
    started = time.monotonic()
    with pytest.raises(BackendUnavailable):
        TaskLock(name).acquire()
    assert time.monotonic() - started < PROMISE + SLACK
    assert len(fault.met) == 2
    proxy.heal()
    eventually(lambda: not store.exists(f"task_lock:{name}"))


@pytest.mark.parametrize("said", [SAYS[0], SAYS[2], SAYS[5]], ids=lambda said: said.split()[0])
def test_a_store_that_says_no(proxy: Proxy, name: str, said: str) -> None:
    """Whatever it says, it is one kind of error to the caller, and the words are in it."""
    proxy.say(said)
    all_told_in_time(name)
    with pytest.raises(BackendUnavailable, match=said.rsplit(maxsplit=1)[-1].rstrip(".")):
        TaskLock(name).acquire()


@TWINS
@pytest.mark.parametrize(
    ("said", "attempts"), [(0, 2), (1, 2), (2, 2), (3, 1), (4, 1), (6, 1), (8, 1)], ids=lambda value: str(value)
)
def test_what_cannot_help_is_not_tried_again(proxy: Proxy, name: str, way: str, said: int, attempts: int) -> None:
    """A replica or a loading server may have a successor at the same address; a refusal stays one."""
    proxy.say(SAYS[said])
    with proxy.recorded() as sent, pytest.raises(BackendUnavailable):
        call(way, get_backend(), "get", name)
    assert len(sent) == attempts
