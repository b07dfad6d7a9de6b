"""Primaries of a Redis Cluster that fail: found again where their replicas are, and nobody else is held up."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from django_tasklock import BackendUnavailable, LockLost, TaskLock
from django_tasklock.backends.cluster import ClusterBackend
from django_tasklock.backends.contract.queries import Query
from django_tasklock.conf import Settings
from django_tasklock.types import Grant, Released, Renewal, RenewalResult
from tests.support.cluster import Cluster, Node, clustered
from tests.support.cluster_acts import Waiting, slot_of
from tests.support.stores import an_ask, eventually, granted
from tests.support.twins import TWINS, call

pytest_plugins = ["tests.support.redis_fixtures"]
pytestmark = [pytest.mark.redis, pytest.mark.slow]


@pytest.fixture
def watched(tmp_path: Path) -> Iterator[Cluster]:
    """Three primaries, each with a replica. What one serves others do without."""
    with clustered(tmp_path, replicas=1) as found:
        yield found


@pytest.fixture
def backend(watched: Cluster) -> Iterator[ClusterBackend]:
    """As one process has it."""
    found = ClusterBackend(Settings(LOCATION=watched.url))
    yield found
    found.close()


def at_each(cluster: Cluster) -> dict[Node, str]:
    """A name at each primary."""
    found: dict[Node, str] = {}
    for number in range(100):
        found.setdefault(cluster.serving(slot_of(f"video:{number}")), f"video:{number}")
    assert len(found) == 3
    return found


def as_soon_as_it_can(ask: Any) -> Any:
    """What ``ask()`` says as soon as the store answers."""

    def said() -> Any:
        try:
            return [ask()]
        except BackendUnavailable:
            return None

    return eventually(said, 30)[0]


@TWINS
def test_locks_that_the_replica_has_are_held_on(watched: Cluster, backend: ClusterBackend, way: str) -> None:
    names = at_each(watched)
    asks = {node: an_ask(name) for node, name in names.items()}
    for ask in asks.values():
        granted(call(way, backend, "acquire", ask))
    struck, *others = names
    struck.client.wait(1, 5000)
    struck.kill()
    began = time.monotonic()
    for node in others:  # nobody waits for the dead
        assert call(way, backend, "release", names[node], asks[node].token) is Released.RELEASED
    assert time.monotonic() - began < 20
    ask = asks[struck]
    assert isinstance(as_soon_as_it_can(lambda: call(way, backend, "acquire", ask)), Grant)
    print(f"\nfound again after {time.monotonic() - began:.1f} s")
    assert backend.counts().live == 1
    assert [record.name for record in backend.page(Query(order="age")).records] == [ask.name]
    assert call(way, backend, "release", ask.name, ask.token) is Released.RELEASED
    assert backend.condition()


def test_renewals_of_the_others_go_on(watched: Cluster, backend: ClusterBackend) -> None:
    names = at_each(watched)
    asks = [an_ask(name) for name in names.values()]
    for ask in asks:
        granted(backend.acquire(ask))
    batch = [Renewal(ask.name, ask.token, 60_000) for ask in asks]
    assert backend.renew(batch) == [RenewalResult.RENEWED] * 3
    next(iter(names)).kill()
    began = time.monotonic()
    assert backend.renew(batch) == [RenewalResult.UNKNOWN, RenewalResult.RENEWED, RenewalResult.RENEWED]
    assert time.monotonic() - began < 20


def test_a_silent_node_costs_only_the_leases_on_that_node(tmp_path: Path, configure: Any) -> None:
    """Without replicas: one server is stopped for longer than a lease."""
    with clustered(tmp_path) as cluster:
        configure(LOCATION=cluster.url)
        names = at_each(cluster)
        locks = {node: TaskLock(name, lease=3, timeout=60) for node, name in names.items()}
        assert all(lock.acquire() for lock in locks.values())
        struck, *others = names
        os.kill(struck.pid, signal.SIGSTOP)
        try:
            eventually(lambda: locks[struck].lost, 20)
            ends = time.monotonic() + 4  # and for another lease
            while time.monotonic() < ends:
                assert all(locks[node].held for node in others)
                time.sleep(0.1)
        finally:
            os.kill(struck.pid, signal.SIGCONT)
        with pytest.raises(LockLost):
            locks[struck].ensure_held()
        for node in others:
            assert locks[node].release() is Released.RELEASED


def test_a_waiter_is_woken_where_the_lock_is_now(watched: Cluster, backend: ClusterBackend) -> None:
    name = at_each(watched)[watched.primaries[0]]
    mine = an_ask(name)
    granted(backend.acquire(mine))
    other = ClusterBackend(Settings(LOCATION=watched.url))
    with Waiting(other, name) as waits:
        eventually(lambda: len(backend.waiters(name).waiting) == 1)
        watched.primaries[0].client.wait(1, 5000)
        watched.primaries[0].kill()
        assert as_soon_as_it_can(lambda: backend.release(name, mine.token)) is Released.RELEASED
        eventually(lambda: waits.granted, 20)
    other.close()


def test_coroutines_find_it_again(watched: Cluster, backend: ClusterBackend) -> None:
    name = at_each(watched)[watched.primaries[1]]

    async def scenario() -> None:
        asks = [an_ask(name) for _ in range(2)]
        granted(await backend.aacquire(asks[0]))
        watched.primaries[1].client.wait(1, 5000)
        watched.primaries[1].kill()

        async def patiently() -> Any:
            while True:
                try:
                    return await backend.arelease(name, asks[0].token)
                except BackendUnavailable:
                    await asyncio.sleep(0.05)

        found = await asyncio.wait_for(asyncio.gather(*(patiently() for _ in range(5))), 30)
        assert Released.RELEASED in found

    asyncio.run(scenario())
