"""``TASKLOCK["REPLICAS"]``: what too few replicas have is given back, and nobody has had it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import redis
from django.core.exceptions import ImproperlyConfigured

from django_tasklock import BackendUnavailable, ConcurrencyLimiter, TaskLock
from django_tasklock.backends.redis.acknowledged import WAIT_TIMEOUT
from django_tasklock.checks.store import check_backend
from django_tasklock.types import monotonic
from tests.support.proxy import Proxy, command
from tests.support.sentinel import Watched, watched
from tests.support.stores import eventually
from tests.support.twins import TWINS, call, token_in

pytest_plugins = ["tests.support.redis_fixtures"]
pytestmark = pytest.mark.redis


@pytest.fixture(scope="module")
def watch(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Watched]:
    """One set of servers for the module: a primary, one replica."""
    with watched(tmp_path_factory.mktemp("replicas")) as found:
        yield found


@pytest.fixture
def primary(watch: Watched, configure: Callable[..., None]) -> Iterator[redis.Redis]:
    """The primary, asked directly. Locks are there, and one replica must have them."""
    configure(LOCATION=watch.url(), REPLICAS=1)
    with watch.primary() as client:
        yield client
        client.flushall()


@contextlib.contextmanager
def stopped(watch: Watched) -> Iterator[None]:
    """The replica acknowledges nothing."""
    process = watch.servers[1].process
    assert process is not None
    os.kill(process.pid, signal.SIGSTOP)
    state = Path(f"/proc/{process.pid}/stat")
    try:
        eventually(lambda: not state.exists() or state.read_text().rpartition(")")[2].split()[0] == "T")
        yield
    finally:
        os.kill(process.pid, signal.SIGCONT)


@TWINS
def test_a_replica_has_what_was_taken(watch: Watched, primary: redis.Redis, name: str, way: str) -> None:
    lock = TaskLock(name)
    for _ in range(20):
        assert call(way, lock, "acquire") is True
        with watch.replica() as replica:
            assert token_in(replica, name) == lock.token  # now, and not soon
        assert call(way, lock, "release")


@TWINS
def test_in_the_same_packet(watch: Watched, primary: redis.Redis, configure: Any, name: str, way: str) -> None:
    with Proxy(f"redis://127.0.0.1:{watch.servers[0].port}/0") as between:
        configure(LOCATION=between.url, REPLICAS=1)
        lock = TaskLock(name)
        call(way, lock, "acquire")
        call(way, lock, "release")
        between.fault(command(b"WAIT"), times=1, delay=0.05)  # the replies come apart
        with between.recorded() as sent:
            assert call(way, lock, "acquire") is True
            assert call(way, lock, "release")
    assert [request[0] for request in sent] == [b"EVALSHA", b"WAIT", b"EVALSHA"]
    assert sent[1][1:] == (b"1", str(WAIT_TIMEOUT).encode())


@TWINS
def test_a_script_that_is_not_known_there_yet(primary: redis.Redis, name: str, way: str) -> None:
    primary.script_flush()
    lock = TaskLock(name)
    assert call(way, lock, "acquire") is True
    assert call(way, lock, "release")


@TWINS
def test_busy_is_busy(watch: Watched, primary: redis.Redis, name: str, way: str) -> None:
    """A refusal is acknowledged by nobody, and need not be."""
    assert TaskLock(name).acquire() is True
    with stopped(watch):
        lock = TaskLock(name, reentrant=False)
        with ThreadPoolExecutor(1) as other:
            assert other.submit(call, way, lock, "acquire").result() is False


@TWINS
@pytest.mark.parametrize("policy", ["raise", "run", "skip"])
def test_what_no_replica_has_is_given_back(
    watch: Watched, primary: redis.Redis, name: str, way: str, policy: Any
) -> None:
    """And no policy runs a body without it: the store is not down."""
    lock = TaskLock(name, on_unavailable=policy)
    with stopped(watch):
        if policy == "skip":
            assert call(way, lock, "acquire") is False
        else:
            with pytest.raises(BackendUnavailable, match=r"0 of the 1 replicas that TASKLOCK\['REPLICAS'\]") as caught:
                call(way, lock, "acquire")
            assert caught.value.down is False
        assert not lock.taken
        eventually(lambda: token_in(primary, name) is None)


@TWINS
def test_a_permit(watch: Watched, primary: redis.Redis, name: str, way: str) -> None:
    limiter = ConcurrencyLimiter(name, 2, on_unavailable="raise")
    assert limiter.acquire() is True
    assert limiter.release()
    with stopped(watch), pytest.raises(BackendUnavailable, match="REPLICAS"):
        call(way, limiter, "acquire")
    eventually(lambda: primary.zcard(f"task_lock#permits:{name}") == 0)


@TWINS
def test_what_is_handed_over_is_acknowledged_as_well(watch: Watched, primary: redis.Redis, name: str, way: str) -> None:
    """Whoever releases does not wait for replicas: who was handed the lock asks once more, and hears of it then."""
    holder, waiter = TaskLock(name), TaskLock(name)
    assert holder.acquire() is True
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(call, way, waiter, "acquire", blocking_timeout=20)
        eventually(lambda: primary.zcard(f"task_lock#queue:{name}") == 1)
        with stopped(watch):
            assert holder.release()
            eventually(lambda: token_in(primary, name))  # handed over: but nobody says so
            began = monotonic()
            eventually(lambda: monotonic() > began + 2 * WAIT_TIMEOUT / 1000)
            assert not waiting.done()
        assert waiting.result(20) is True
        with watch.replica() as replica:
            assert token_in(replica, name) == waiter.token
        assert waiter.release()


def test_coroutines_share_a_connection(watch: Watched, primary: redis.Redis, name: str) -> None:
    async def scenario() -> None:
        async def once(number: int) -> None:
            async with TaskLock(f"{name}:{number}"):
                await asyncio.sleep(0)

        await asyncio.gather(*(once(number) for number in range(50)))
        task = asyncio.create_task(TaskLock(name).aacquire())
        await asyncio.sleep(0)
        task.cancel()  # its two replies come nevertheless, and are nobody's
        await asyncio.gather(*(once(number) for number in range(5)))

    asyncio.run(asyncio.wait_for(scenario(), 30))


@TWINS
def test_a_user_who_may_not_wait(watch: Watched, primary: redis.Redis, configure: Any, name: str, way: str) -> None:
    """What was granted is given back, although the server said no to something."""
    primary.execute_command("ACL", "SETUSER", "mute", "reset", "on", ">x", "~*", "&*", "+@all", "-wait")
    try:
        configure(LOCATION=watch.url().replace("//", "//mute:x@"), REPLICAS=1)
        with pytest.raises(BackendUnavailable, match=r"WAIT, which TASKLOCK\['REPLICAS'\] sends, failed"):
            call(way, TaskLock(name), "acquire")
        eventually(lambda: token_in(primary, name) is None)
    finally:
        primary.execute_command("ACL", "DELUSER", "mute")


@pytest.mark.parametrize("wrong", [-1, True, "1", 1.0, 101])
def test_what_is_no_number_of_replicas(configure: Any, wrong: object) -> None:
    configure(REPLICAS=wrong)
    with pytest.raises(ImproperlyConfigured, match=r"TASKLOCK\['REPLICAS'\] must be a whole number from 0 to 100"):
        TaskLock("x")


def test_a_store_without_replicas(configure: Any) -> None:
    configure(BACKEND="django_tasklock.backends.memory.MemoryBackend", REPLICAS=1)
    (problem,) = check_backend()
    assert problem.id == "tasklock.E002"
    assert "no replicas that it could wait for" in problem.msg
