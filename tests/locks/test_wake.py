"""One subscription of this process wakes all who wait in it: threads and coroutines, for locks and for permits."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest
import redis

from django_tasklock import TaskLock
from django_tasklock.backends.redis import RedisBackend, wake
from django_tasklock.types import Busy, Released
from tests.support.stores import an_ask, eventually, granted, new_token

pytest_plugins = ["tests.support.redis_fixtures"]
pytestmark = pytest.mark.redis


def channels(store: redis.Redis, name: str) -> set[bytes]:
    """Those on which somebody waits for this lock or limiter."""
    waiters = store.hvals(f"task_lock#waiters:{name}") + store.hvals(f"task_lock#permits-waiters:{name}")
    return {waiter.split()[1] for waiter in waiters}


def listeners(store: redis.Redis, channel: bytes | str) -> int:
    """How many connections listen there."""
    return int(dict(store.pubsub_numsub(channel)).popitem()[1])


def place(store: redis.Redis, name: str, token: str) -> tuple[int, str]:
    """When that waiter asked last, and its channel."""
    seen, channel, *_ = (store.hget(f"task_lock#waiters:{name}", token) or b"").decode().split(" ", 2)
    return int(seen), channel


def test_threads_and_coroutines_wait_on_one_connection(store: redis.Redis, another: Any, name: str) -> None:
    """Twenty of them, for locks and permits of different names: each is woken when it is its turn."""
    holder, mine = another(), another()
    names = [f"{name}:{number}" for number in range(10)]
    held = {one: new_token() for one in names}
    for one in names:
        for leases in (holder, holder.permits):
            granted(leases.acquire(an_ask(one, held[one])))
    woken: list[str] = []

    def wait(one: str) -> None:
        with mine.waiter(an_ask(one)) as waiter:
            while isinstance(waiter.acquire(), Busy) and waiter.wait(60) is None:
                pass
            woken.append(one)

    async def wait_for_permits() -> None:
        async def turn(one: str) -> None:
            waiter = mine.permits.waiter(an_ask(one))
            while isinstance(await waiter.aacquire(), Busy) and await waiter.await_(60) is None:
                pass
            woken.append(one)
            await waiter.aleave()

        await asyncio.gather(*map(turn, names))

    threads = [threading.Thread(target=wait, args=(one,)) for one in names]
    threads.append(threading.Thread(target=lambda: asyncio.run(wait_for_permits())))
    for thread in threads:
        thread.start()
    eventually(lambda: all(holder.waiters(one).total == holder.permits.waiters(one).total == 1 for one in names))
    eventually(lambda: len(set().union(*(channels(store, one) for one in names))) == 1)  # of a process, for all
    assert listeners(store, channels(store, name + ":0").pop()) == 1
    for one in names:
        for leases in (holder, holder.permits):
            leases.release(one, held[one])
    for thread in threads:
        thread.join(30)
    assert sorted(woken) == sorted(2 * names)


def test_the_subscription_ends_when_nobody_has_waited_for_a_while(
    store: redis.Redis, another: Any, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wake, "LINGER", 0.1)
    backend, holder = another(), an_ask(name)
    granted(backend.acquire(holder))
    for _ in range(2):
        with backend.waiter(an_ask(name)) as waiter:
            assert isinstance(waiter.acquire(), Busy)
            channel = place(store, name, waiter.request.token)[1]
            eventually(lambda channel=channel: listeners(store, channel) == 1)
        eventually(lambda channel=channel: listeners(store, channel) == 0)


def test_a_message_about_an_earlier_turn_is_no_grant(store: redis.Redis, another: Any, name: str) -> None:
    """A stopped process finds it in its buffer when it goes on, and has asked anew, behind another holder."""
    backend, holder, mine = another(), an_ask(name), an_ask(name)
    granted(backend.acquire(holder))
    with backend.waiter(mine) as waiter:
        assert isinstance(waiter.acquire(), Busy)
        seen, channel = place(store, name, mine.token)
        assert store.publish(channel, f"{mine.token} 7 {seen - 4000}") == 1
        assert waiter.wait(0.3) is None
        assert store.publish(channel, f"{new_token()} 7 {seen}") == 1
        assert waiter.wait(0.3) is None
        assert backend.release(name, holder.token) is Released.RELEASED
        eventually(lambda: waiter.wait(1))


def test_it_follows_the_server_that_runs_the_scripts(
    store: redis.Redis, another: Any, redis_server: Any, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after a failover: the subscription is open, at a server that hands nothing over."""
    backend, holder, mine = another(), an_ask(name), an_ask(name)
    granted(backend.acquire(holder))
    former = another(redis_server.url)
    connects: list[Callable[[], Any]] = [former.client.connect, former.client.connect]
    right = backend.client.connect

    def connect() -> Any:
        return (connects.pop() if connects and threading.current_thread().name == "tasklock-listener" else right)()

    monkeypatch.setattr(backend.client, "connect", connect)
    with backend.waiter(mine) as waiter:
        assert isinstance(waiter.acquire(), Busy)  # subscribed there since
        for _ in range(4):
            if place(store, name, mine.token)[0] > 0:
                break
            assert isinstance(waiter.acquire(), Busy)
        assert place(store, name, mine.token)[0] > 0
        assert not connects
        backend.release(name, holder.token)
        granted(waiter.wait(10))


def test_a_waiter_in_a_loop_holds_no_thread(another: Any, stranger: RedisBackend, name: str) -> None:
    """However many wait, the verbs of others have threads to run in."""
    ask = an_ask(name)
    granted(stranger.acquire(ask))

    async def main() -> None:
        waiting = [asyncio.create_task(TaskLock(name).aacquire(blocking=True)) for _ in range(50)]
        while stranger.waiters(name).total < 50:  # noqa: ASYNC110
            await asyncio.sleep(0.05)
        other = TaskLock(f"{name}:other")
        assert await asyncio.wait_for(other.aacquire(), 5)
        await other.arelease()
        for one in waiting:
            one.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)

    asyncio.run(main())
    assert stranger.waiters(name).total == 0
    stranger.release(name, ask.token)
