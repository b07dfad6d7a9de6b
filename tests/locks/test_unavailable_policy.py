"""The store is down: the policy decides, in every way to take a lock; and it comes back."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
import redis

from django_tasklock import (
    BackendUnavailable,
    ConcurrencyLimiter,
    TaskLock,
    TaskLockAcquireError,
    acquire_task_lock,
    force_release_task_lock,
    get_lock_info,
    is_task_locked,
    signals,
    task_lock,
    task_lock_context,
)
from django_tasklock.backends.redis import RedisBackend
from django_tasklock.types import Released
from tests.support.proxy import Proxy, scripts
from tests.support.stores import an_ask, eventually, granted, new_token
from tests.support.twins import TWINS, call, conflict, token_in

pytest_plugins = ["tests.support.redis_fixtures"]
pytestmark = pytest.mark.redis

Told = list[tuple[str, str]]


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
    assert isinstance(conflict(way, lock).__cause__, BackendUnavailable)
    assert not lock.taken
    assert told == [(name, "skip")]


@pytest.mark.parametrize(
    ("says", "down"),
    [
        ("OOM command not allowed when used memory > 'maxmemory'.", False),
        ("READONLY You can't write against a read only replica.", False),
        ("NOPERM this user has no permissions to run the 'evalsha' command", False),
        ("LOADING Redis is loading the dataset in memory", True),
    ],
    ids=lambda value: str(value).split()[0],
)
def test_a_store_that_answers_no_is_not_down(proxy: Proxy, name: str, says: str, down: bool) -> None:
    """Others are served by it, and may have the lock: "run" runs only where it serves nobody."""
    proxy.say(says)
    lock = TaskLock(name, on_unavailable="run")
    if down:
        assert lock.acquire() is True
        assert not lock.held
        lock.release()
        return
    with pytest.raises(BackendUnavailable) as caught:
        lock.acquire()
    assert caught.value.down is False
    assert not lock.taken


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
@pytest.mark.parametrize("kind", [TaskLock, partial(ConcurrencyLimiter, limit=1)], ids=["lock", "limiter"])
def test_a_block_fails_closed(down: Proxy, configure: Any, name: str, way: str, kind: Any) -> None:
    """Whatever the setting says: code that names the lock itself means to have it."""
    configure(LOCATION=down.url, ON_UNAVAILABLE="run")
    with pytest.raises(BackendUnavailable):
        call(way, kind(name), "acquire")
    ran = []
    with pytest.raises(BackendUnavailable), kind(name):
        ran.append(name)
    assert not ran
    assert acquire_task_lock(name, 30) is True
    assert decorated(way, name)() == "ran"


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


def test_a_lock_that_was_only_ever_asked_for_is_not_taken_from_the_next_one(
    proxy: Proxy, store: redis.Redis, stranger: RedisBackend, name: str
) -> None:
    """Gold standard 8.2: giving up what may have been left behind touches nobody else's lock."""
    proxy.refuse()
    with pytest.raises(BackendUnavailable):
        TaskLock(name).acquire(blocking_timeout=1)  # a place in the queue may have been left
    token = new_token()
    granted(stranger.acquire(an_ask(name, token)))
    with proxy.recorded() as sent:
        proxy.heal()
        eventually(lambda: any(scripts("release")(request) for request in proxy.requests))
    assert sent
    assert token_in(store, name) == token
