"""What a time limit, a signal or the end of a process leaves in the store: nothing, wherever it strikes."""

from __future__ import annotations

import gc
import signal
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import redis

from django_tasklock import (
    TaskLock,
    acquire_task_lock,
    current_limiter,
    current_lock,
    release_task_lock,
    task_lock,
    task_lock_context,
)
from django_tasklock.backends import get_backend
from django_tasklock.locks.heartbeat import heartbeat
from tests.support.current import here
from tests.support.proxy import Proxy, scripts
from tests.support.public import script, setting
from tests.support.stores import eventually
from tests.support.struck import Struck, struck_at

pytest_plugins = ["tests.support.redis_fixtures"]
pytestmark = pytest.mark.redis


# Everywhere


def block(name: str) -> None:
    with TaskLock(name):
        pass


def context(name: str) -> None:
    with task_lock_context(name):
        pass


def functions(name: str) -> None:
    if acquire_task_lock(name):
        try:
            release_task_lock(name)
        except Struck:  # it may not have begun
            release_task_lock(name)
            raise


def decorated(name: str) -> None:
    task_lock(lambda: name)(lambda: None)()


def retaken(name: str) -> None:
    lock = TaskLock(name, reentrant=True)
    with lock:
        try:
            with lock:
                pass
        except Struck:
            assert lock.held, "it is the block's around this one"
            raise


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # sockets, and generators that end
@pytest.mark.parametrize("what", [context, functions, decorated, retaken])
def test_struck_anywhere_nothing_is_renewed(settings: Any, name: str, what: Any) -> None:
    """Everywhere once. What nobody has ends with its lease: the heartbeat would renew it for an hour."""
    settings.TASKLOCK = setting("redis")
    what(name)  # connects, and lets Redis know the scripts
    where: dict[str, str] = {}
    number = 0
    while True:
        number += 1
        mine = f"{name}:{number}"
        with struck_at(number) as struck:
            what(mine)
        if not struck:
            break
        where[mine] = struck[0]
        get_backend().client.clear()  # the exception may have come between a request and its answer
    assert number > 60
    gc.collect()  # an exception may hold on to the objects that were on its way, in a circle
    assert here(current_lock) is here(current_limiter) is None, "each later call would go through such blocks"
    assert not [where.get(hold.name, hold.name) for hold in heartbeat.leases() if hold.name.startswith(name)]
    eventually(lambda: not heartbeat.reconciler)


# By a real signal, at an exact moment


@pytest.fixture
def strike() -> Iterator[Callable[[], None]]:
    """Makes a signal handler of this thread raise ``Struck``; called from another thread."""

    def handler(*details: Any) -> None:
        raise Struck

    before = signal.signal(signal.SIGUSR1, handler)
    main = threading.main_thread().ident
    assert main is not None
    yield lambda: signal.pthread_kill(main, signal.SIGUSR1)
    signal.signal(signal.SIGUSR1, before)


def test_an_acquire_whose_packet_is_on_the_way(
    proxy: Proxy, store: redis.Redis, name: str, strike: Callable[[], None]
) -> None:
    """It is granted only when the release that was to undo it has found nothing."""
    block(f"{name}:before")
    held_up = proxy.fault(scripts("acquire"), first=strike, unsent=True)
    with pytest.raises(Struck):
        TaskLock(name).acquire()
    assert not store.exists(f"task_lock:{name}")
    [packet] = held_up.met
    assert store.execute_command(*packet)[0] > 0  # its fence
    eventually(lambda: not store.exists(f"task_lock:{name}"))


def test_a_release_that_is_struck_is_made_up_for(proxy: Proxy, store: redis.Redis, name: str, strike: Any) -> None:
    """By the heartbeat's thread; the end of the process waits for that."""
    lock = TaskLock(name, lease=None)
    assert lock.acquire()
    proxy.fault(scripts("release"), first=strike, answer=b"-LOADING for this test\r\n")
    with pytest.raises(Struck):
        lock.release()
    eventually(lambda: not store.exists(f"task_lock:{name}"))
    eventually(lambda: not heartbeat.reconciler.leftovers)


# The end of a process


CANCELLED = """
import asyncio, os
os.environ.setdefault("DJANGO_SETTINGS_MODULE", "tests.settings")
import django
django.setup()
import logging
logging.getLogger("django_tasklock").setLevel("CRITICAL")
from django.conf import settings
settings.TASKLOCK = {{"LOCATION": {url!r}, "ON_UNAVAILABLE": "raise"}}
import redis
from django_tasklock import TaskLock

async def main():
    acquiring = asyncio.create_task(TaskLock({name!r}).aacquire())
    while not plain.exists("task_lock:" + {name!r}):
        await asyncio.sleep(0.001)
    acquiring.cancel()
    await asyncio.wait([acquiring])

with redis.Redis.from_url(os.environ["TASKLOCK_TEST_REDIS"]) as plain:
    asyncio.run(main())
"""


def test_a_cancelled_coroutine_whose_process_ends(proxy: Proxy, store: redis.Redis, name: str) -> None:
    block(f"{name}:before")
    proxy.fault(scripts("acquire"), swallow=True)
    proxy.fault(scripts("release"), unsent=True, times=2)
    script(CANCELLED.format(url=proxy.url, name=name))
    assert not store.exists(f"task_lock:{name}")
