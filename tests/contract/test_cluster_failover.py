"""The primary of the locks in a Redis Cluster that fails: they are found again where its replica is."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from django_tasklock import BackendUnavailable
from django_tasklock.backends.redis import RedisBackend
from django_tasklock.conf import Settings
from django_tasklock.types import Grant, Released
from tests.support.cluster import Cluster, clustered
from tests.support.cluster_acts import SLOT, Waiting, away
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
def backend(watched: Cluster) -> Iterator[RedisBackend]:
    """As one process has it."""
    found = RedisBackend(Settings(LOCATION=watched.url))
    yield found
    found.close()


def kill_primary(cluster: Cluster) -> None:
    """Kill the node that serves the locks, when its replica has all of them."""
    struck = cluster.serving(SLOT)
    assert struck.client.wait(1, 5000) == 1
    struck.kill()


def as_soon_as_it_can(ask: Any) -> Any:
    """What ``ask()`` says as soon as the store answers."""

    def said() -> Any:
        try:
            return [ask()]
        except BackendUnavailable:
            return None

    return eventually(said, 30)[0]


@TWINS
def test_locks_that_the_replica_has_are_held_on(watched: Cluster, backend: RedisBackend, way: str) -> None:
    ask = an_ask("video:1")
    granted(call(way, backend, "acquire", ask))
    kill_primary(watched)
    began = time.monotonic()
    assert isinstance(as_soon_as_it_can(lambda: call(way, backend, "acquire", ask)), Grant)
    print(f"\nfound again after {time.monotonic() - began:.1f} s")
    assert [record.name for record in backend.records()] == ["video:1"]
    assert call(way, backend, "release", ask.name, ask.token) is Released.RELEASED
    assert backend.condition()


def test_a_verb_gives_up_in_time(watched: Cluster, backend: RedisBackend) -> None:
    """While nobody has replaced the primary, which is silent or gone."""
    granted(backend.acquire(an_ask("video:1")))
    struck = watched.serving(SLOT)
    replica = watched.replicas[watched.primaries.index(struck)]
    for node in (replica, struck):
        os.kill(node.pid, signal.SIGSTOP)
    for _ in range(2):  # with a connection, and without one
        began = time.monotonic()
        with pytest.raises(BackendUnavailable) as caught:
            backend.acquire(an_ask("video:2"))
        assert caught.value.down
        assert time.monotonic() - began < 20


@TWINS
def test_the_failure_of_another_node_is_not_noticed(watched: Cluster, backend: RedisBackend, way: str) -> None:
    ask = an_ask("video:1")
    granted(call(way, backend, "acquire", ask))
    away(watched).kill()
    assert call(way, backend, "release", ask.name, ask.token) is Released.RELEASED


def test_a_waiter_is_woken_where_the_lock_is_now(watched: Cluster, backend: RedisBackend) -> None:
    mine = an_ask("video:1")
    granted(backend.acquire(mine))
    other = RedisBackend(Settings(LOCATION=watched.url))
    with Waiting(other, "video:1") as waits:
        eventually(lambda: len(backend.waiters("video:1").waiting) == 1)
        kill_primary(watched)
        assert as_soon_as_it_can(lambda: backend.release("video:1", mine.token)) is Released.RELEASED
        eventually(lambda: waits.granted, 20)
    other.close()
