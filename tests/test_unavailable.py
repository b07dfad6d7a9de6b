"""The store refuses, hangs or says no: found out within two seconds, and the policy decides."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import redis

from django_tasklock import (
    BackendUnavailable,
    TaskLock,
    TaskLockAcquireError,
    acquire_task_lock,
    force_release_task_lock,
    get_lock_info,
    is_task_locked,
    list_all_task_locks,
    release_task_lock,
    signals,
    task_lock,
    task_lock_context,
)
from django_tasklock.backends import get_backend
from django_tasklock.backends.redis import RedisBackend
from django_tasklock.backends.redis.location import TIMEOUT
from django_tasklock.heartbeat import heartbeat
from django_tasklock.types import Released
from tests.support.proxy import Proxy, scripts
from tests.support.redis_server import RedisServer
from tests.support.stores import an_ask, eventually, granted, new_token
from tests.support.twins import TWINS, call, token_in

pytest_plugins = ["tests.support.redis_fixtures"]
pytestmark = pytest.mark.redis

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


def test_two_attempts_fit_into_the_promise() -> None:
    assert 2 * TIMEOUT < PROMISE


def test_a_store_that_refuses_connections(proxy: Proxy, name: str) -> None:
    proxy.refuse()
    all_told_in_time(name)


def test_a_store_that_goes_away_under_open_connections(proxy: Proxy, name: str) -> None:
    get_backend().get(name)
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
        eventually(lambda: not heartbeat._leftovers)
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


@pytest.mark.parametrize("said", SAYS, ids=lambda said: said.split()[0])
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


@TWINS
def test_a_refusal_is_not_the_end_of_the_connection(proxy: Proxy, name: str, way: str) -> None:
    """What is answered with an error was answered: the next request on it gets its own reply."""

    async def on_one_loop() -> None:
        proxy.say("OOM command not allowed when used memory > 'maxmemory'.")
        with pytest.raises(BackendUnavailable):
            await get_backend().aget(name)
        proxy.heal()
        assert await get_backend().aget(name) is None

    if way == "async":
        asyncio.run(on_one_loop())
    else:
        proxy.say("OOM command not allowed when used memory > 'maxmemory'.")
        with pytest.raises(BackendUnavailable):
            get_backend().get(name)
        proxy.heal()
        assert get_backend().get(name) is None
    assert proxy.accepted == 1


@TWINS
def test_a_server_that_was_away_for_one_request_is_not_noticed(proxy: Proxy, name: str, way: str) -> None:
    lock = TaskLock(name)
    proxy.fault(scripts("acquire"), unsent=True)
    assert call(way, lock, "acquire") is True
    proxy.cut()
    assert call(way, lock, "release") is Released.RELEASED


# --- the policy


@pytest.fixture
def down(proxy: Proxy) -> Proxy:
    """The store is down from the start."""
    proxy.refuse()
    return proxy


@pytest.fixture
def told() -> Iterator[list[tuple[str, str]]]:
    """What ``store_unavailable`` told: whose lock, and what was done."""
    heard: list[tuple[str, str]] = []

    def receiver(sender: str, error: BackendUnavailable, action: str, **kwargs: Any) -> None:
        assert isinstance(error, BackendUnavailable)
        heard.append((sender, action))

    signals.store_unavailable.connect(receiver)
    yield heard
    signals.store_unavailable.disconnect(receiver)


Told = list[tuple[str, str]]


@TWINS
@pytest.mark.parametrize("by_setting", [True, False], ids=["setting", "argument"])
def test_policy_run(
    down: Proxy, configure: Any, told: Told, name: str, way: str, by_setting: bool, warnings_logged: Any
) -> None:
    """On without the lock: said in the log and by a signal, and visible on the lock."""
    if by_setting:
        configure(LOCATION=down.url, ON_UNAVAILABLE="run")
    lock = TaskLock(name, on_unavailable=None if by_setting else "run")
    assert call(way, lock, "acquire") is True
    assert lock.taken
    assert not lock.held
    assert not lock.lost
    assert lock.fence == 0
    assert told == [(name, "run")]
    assert any(name in line and "policy: run" in line for line in warnings_logged())
    assert call(way, lock, "release") is Released.GONE
    assert not lock.taken


@TWINS
@pytest.mark.parametrize("by_setting", [True, False], ids=["setting", "argument"])
def test_policy_raise(down: Proxy, configure: Any, told: Told, name: str, way: str, by_setting: bool) -> None:
    configure(LOCATION=down.url, ON_UNAVAILABLE="raise" if by_setting else "run")
    lock = TaskLock(name, on_unavailable=None if by_setting else "raise")
    with pytest.raises(BackendUnavailable) as caught:
        call(way, lock, "acquire")
    assert caught.value.name == name
    assert not lock.taken
    assert told == [(name, "raise")]


@TWINS
@pytest.mark.parametrize("by_setting", [True, False], ids=["setting", "argument"])
def test_policy_skip(down: Proxy, configure: Any, told: Told, name: str, way: str, by_setting: bool) -> None:
    configure(LOCATION=down.url, ON_UNAVAILABLE="skip" if by_setting else "run")
    lock = TaskLock(name, on_unavailable=None if by_setting else "skip")
    assert call(way, lock, "acquire") is False
    assert isinstance(lock.conflict, TaskLockAcquireError)
    assert isinstance(lock.conflict.__cause__, BackendUnavailable)
    assert not lock.taken
    assert told == [(name, "skip")]


def decorated(way: str, name: str, **options: Any) -> Callable[[], Any]:
    """A function with ``task_lock``, called as the event loop or a worker would."""

    @task_lock(name, **options)
    def body() -> str:
        return "ran"

    @task_lock(name, **options)
    async def coroutine() -> str:
        return "ran"

    return body if way == "sync" else lambda: asyncio.run(coroutine())


@TWINS
def test_decorator_policy_run(down: Proxy, told: Told, name: str, way: str) -> None:
    assert decorated(way, name, on_unavailable="run")() == "ran"
    assert told == [(name, "run")]


@TWINS
def test_decorator_policy_raise(down: Proxy, told: Told, name: str, way: str) -> None:
    with pytest.raises(BackendUnavailable):
        decorated(way, name, on_unavailable="raise")()
    assert told == [(name, "raise")]


@TWINS
def test_decorator_policy_skip(down: Proxy, told: Told, name: str, way: str) -> None:
    """The result says that it was not another run that kept this one away."""
    skipped = decorated(way, name, on_unavailable="skip")()
    assert skipped == {
        "status": "skipped",
        "reason": "lock_unavailable",
        "name": name,
        "holder": None,
        "held_for": None,
        "time_left": None,
    }
    assert told == [(name, "skip")]


@TWINS
@pytest.mark.parametrize("on_conflict", ["raise", "wait"])
def test_decorator_policy_skip_where_a_conflict_raises(down: Proxy, name: str, way: str, on_conflict: str) -> None:
    with pytest.raises(TaskLockAcquireError) as caught:
        decorated(way, name, on_unavailable="skip", on_conflict=on_conflict)()
    assert isinstance(caught.value.__cause__, BackendUnavailable)


def within(way: str, context: task_lock_context) -> bool:
    """What the context manager yields."""
    if way == "sync":
        with context as acquired:
            return acquired

    async def entered() -> bool:
        async with context as acquired:
            return acquired

    return asyncio.run(entered())


@TWINS
def test_context_manager_policies(down: Proxy, told: Told, name: str, way: str) -> None:
    assert within(way, task_lock_context(name, on_unavailable="run")) is True
    assert within(way, task_lock_context(name, raise_on_fail=False, on_unavailable="skip")) is False
    with pytest.raises(TaskLockAcquireError):
        within(way, task_lock_context(name, on_unavailable="skip"))
    for raise_on_fail in (True, False):
        with pytest.raises(BackendUnavailable):
            within(way, task_lock_context(name, raise_on_fail=raise_on_fail, on_unavailable="raise"))
    assert told == [(name, action) for action in ("run", "skip", "skip", "raise", "raise")]


@TWINS
def test_with_statement_policies(down: Proxy, name: str, way: str) -> None:
    def entered(**options: Any) -> bool:
        async def twin() -> bool:
            async with TaskLock(name, **options) as lock:
                return lock.taken

        if way == "async":
            return asyncio.run(twin())
        with TaskLock(name, **options) as lock:
            return lock.taken

    assert entered(on_unavailable="run") is True
    with pytest.raises(TaskLockAcquireError):
        entered(on_unavailable="skip")
    with pytest.raises(BackendUnavailable):
        entered(on_unavailable="raise")


def test_plain_function_policies(down: Proxy, configure: Any, told: Told, name: str) -> None:
    configure(LOCATION=down.url, ON_UNAVAILABLE="run")
    assert acquire_task_lock(name, 30) is True
    assert release_task_lock(name) is False
    configure(LOCATION=down.url, ON_UNAVAILABLE="skip")
    assert acquire_task_lock(name, 30) is False
    assert release_task_lock(name) is False
    configure(LOCATION=down.url, ON_UNAVAILABLE="raise")
    with pytest.raises(BackendUnavailable):
        acquire_task_lock(name, 30)
    assert told == [(name, action) for action in ("run", "skip", "raise")]


@pytest.mark.parametrize("policy", ["run", "skip"])
def test_questions_are_never_answered_by_the_policy(down: Proxy, configure: Any, name: str, policy: str) -> None:
    """Not known is not free."""
    configure(LOCATION=down.url, ON_UNAVAILABLE=policy)
    for question in (is_task_locked, get_lock_info, force_release_task_lock):
        with pytest.raises(BackendUnavailable):
            question(name)


# --- it comes back


@TWINS
def test_a_release_that_the_store_did_not_hear_is_done_when_it_is_back(
    proxy: Proxy, store: redis.Redis, told: Told, name: str, way: str
) -> None:
    lock = TaskLock(name)
    call(way, lock, "acquire")
    proxy.refuse()
    assert call(way, lock, "release") is Released.UNKNOWN
    assert not lock.taken
    assert told == [(name, "release later")]
    assert store.exists(f"task_lock:{name}")
    proxy.heal()
    eventually(lambda: not store.exists(f"task_lock:{name}"))


@TWINS
def test_the_body_s_own_error_is_what_a_failed_release_leaves_standing(proxy: Proxy, name: str, way: str) -> None:
    async def twin() -> None:
        async with TaskLock(name):
            proxy.refuse()
            raise ZeroDivisionError

    def body() -> None:
        if way == "async":
            asyncio.run(twin())
        with TaskLock(name):
            proxy.refuse()
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        body()
    proxy.heal()


@TWINS
def test_the_lock_is_a_lock_again_when_the_store_is_back(down: Proxy, name: str, way: str) -> None:
    with pytest.raises(BackendUnavailable):
        call(way, TaskLock(name), "acquire")
    down.heal()
    lock = TaskLock(name)
    assert call(way, lock, "acquire") is True
    assert lock.held
    assert call(way, lock, "release") is Released.RELEASED


def test_a_lock_that_was_only_ever_asked_for_is_not_taken_from_the_next_one(
    proxy: Proxy, store: redis.Redis, stranger: RedisBackend, name: str
) -> None:
    """Gold standard 8.2: giving up what may have been left behind touches nobody else's lock."""
    proxy.refuse()
    with pytest.raises(BackendUnavailable):
        TaskLock(name).acquire()
    token = new_token()
    granted(stranger.acquire(an_ask(name, token)))
    with proxy.recorded() as sent:
        proxy.heal()
        eventually(lambda: any(scripts("release")(request) for request in proxy.requests))
    assert sent
    assert token_in(store, name) == token


@TWINS
def test_a_waiter_whose_store_goes_down_is_told_in_time(
    proxy: Proxy, store: redis.Redis, stranger: RedisBackend, name: str, way: str
) -> None:
    """While it sleeps: it does not sleep on, and it does not ask a dead store twice over."""
    granted(stranger.acquire(an_ask(name)))
    with ThreadPoolExecutor(1) as pool:
        taken = pool.submit(call, way, TaskLock(name), "acquire", blocking_timeout=60)
        eventually(lambda: store.zcard(f"task_lock#queue:{name}") == 1)
        started = time.monotonic()
        proxy.hang()
        with pytest.raises(BackendUnavailable):
            taken.result(20)
        assert time.monotonic() - started < 1.0 + PROMISE + SLACK  # it looks at least once a second
    proxy.heal()
