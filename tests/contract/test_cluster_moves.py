"""The slot of the locks in a Redis Cluster moves, or its primary fails: no verb does half of its work, none hangs."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from django_tasklock import BackendUnavailable
from django_tasklock.backends.redis import RedisBackend, cluster as cluster_client
from django_tasklock.conf import Settings
from django_tasklock.types import Busy, Grant, Released, Renewal, RenewalResult
from tests.support.cluster import Cluster, Node, clustered
from tests.support.cluster_acts import SLOT, Waiting, away
from tests.support.stores import an_ask, eventually, granted

pytest_plugins = ["tests.support.cluster_fixtures"]
pytestmark = [pytest.mark.redis, pytest.mark.slow]


def keys_in(node: Node) -> dict[bytes, bytes]:
    """What a node has of the slot."""
    keys = node.client.execute_command("CLUSTER", "GETKEYSINSLOT", SLOT, 99)
    with node.client.pipeline(transaction=False) as asking:
        for key in keys:
            asking.execute_command("ASKING")
            asking.dump(key)
        return dict(zip(keys, asking.execute()[1::2], strict=True))


def test_verbs_follow_a_slot(cluster, backend):
    mine = an_ask("video:1")
    grant = granted(backend.acquire(mine))
    for _ in range(3):
        cluster.move(SLOT, away(cluster))
        assert isinstance(backend.acquire(an_ask("video:1")), Busy)
        assert granted(backend.acquire(mine)).fence == grant.fence
        assert backend.renew([Renewal("video:1", mine.token, 60_000)]) == [RenewalResult.RENEWED]
        assert [record.name for record in backend.records()] == ["video:1"]
    cluster.move(SLOT, away(cluster))
    assert backend.release("video:1", mine.token) is Released.RELEASED


def test_a_verb_waits_while_its_slot_is_moved(cluster, backend, monkeypatch):
    monkeypatch.setattr(cluster_client, "PATIENCE", 60.0)
    mine, target = an_ask("video:1"), away(cluster)
    granted(backend.acquire(mine))
    source = cluster.begin_move(SLOT, target)
    with ThreadPoolExecutor(1) as pool:
        released = pool.submit(backend.release, "video:1", mine.token)
        time.sleep(0.2)
        assert not released.done()
        cluster.move_keys(SLOT, source, target)
        time.sleep(0.1)
        assert not released.done()
        cluster.end_move(SLOT, target)
        assert released.result(60) is Released.RELEASED


@pytest.mark.parametrize("halfway", [0, 1, 3, 100])
def test_while_a_slot_is_moved_no_script_runs_and_the_store_is_unavailable_in_time(cluster, backend, halfway):
    """Gold standards 8.35: of the keys of a script some are here, some there; it must not do the half of its work."""
    target = away(cluster)
    mine = an_ask("video:1", holder='{"host":"a"}')
    granted(backend.acquire(mine))
    with Waiting(backend, "video:1") as waits:
        eventually(lambda: len(backend.waiters("video:1").waiting) == 1)
        source = cluster.begin_move(SLOT, target)
        cluster.move_keys(SLOT, source, target, halfway)
        before = [keys_in(node) for node in (source, target)]
        began = time.monotonic()
        with pytest.raises(BackendUnavailable, match="being moved") as caught:
            backend.release("video:1", mine.token)
        assert time.monotonic() - began < 20
        assert (caught.value.down, caught.value.doubt) == (False, False)
        assert waits.granted is None
        assert [keys_in(node) for node in (source, target)] == before
        cluster.move_keys(SLOT, source, target)
        cluster.end_move(SLOT, target)
        assert backend.release("video:1", mine.token) is Released.RELEASED
        eventually(lambda: waits.granted)


def test_nodes_that_do_not_agree_are_told_from_a_slot_that_is_moved(cluster, backend):
    """So Redis 7.0 stays when slots are moved back and forth faster than the nodes hear of it."""
    node, other = cluster.serving(SLOT), away(cluster)
    for one, said in ((node, other), (other, node)):
        one.client.execute_command("CLUSTER", "SETSLOT", SLOT, "NODE", said.id)
    with pytest.raises(BackendUnavailable, match=f"disagree about which node serves slot {SLOT}: see") as caught:
        backend.acquire(an_ask("video:1"))
    assert (caught.value.down, caught.value.doubt) == (False, False)
    cluster.end_move(SLOT, node)
    granted(backend.acquire(an_ask("video:1")))


def test_a_waiter_whose_slot_moved_is_passed_over_until_it_asks(cluster, backend, other):
    """It listens where the slot was: what is published at the other node must not reach it; it keeps its place."""
    mine = an_ask("video:1")
    granted(backend.acquire(mine))
    with other.waiter(an_ask("video:1")) as first, backend.waiter(an_ask("video:1")) as second:
        assert isinstance(first.acquire(), Busy)
        cluster.move(SLOT, away(cluster))
        assert isinstance(second.acquire(), Busy)
        assert backend.release("video:1", mine.token) is Released.RELEASED
        record = backend.get("video:1")
        assert record is not None
        assert record.token == second.request.token
        assert first.wait(0.2) is None
        assert isinstance(first.acquire(), Busy)
        assert backend.release("video:1", second.request.token) is Released.RELEASED
        assert isinstance(first.wait(20), Grant)


# --- a primary that fails


@pytest.fixture
def replicated(tmp_path: Path) -> Iterator[Cluster]:
    """Three primaries, each with a replica, for one test to harm."""
    with clustered(tmp_path, replicas=1) as found:
        yield found


@pytest.fixture
def survivor(replicated: Cluster) -> Iterator[RedisBackend]:
    """As one process has it."""
    found = RedisBackend(Settings(LOCATION=replicated.url))
    yield found
    found.close()


def as_soon_as_it_can(ask: Any) -> Any:
    """What ``ask()`` says as soon as the store answers."""

    def said() -> Any:
        try:
            return [ask()]
        except BackendUnavailable:
            return None

    return eventually(said, 30)[0]


def test_locks_are_held_on_and_waiters_woken_where_the_replica_is(replicated: Cluster, survivor: RedisBackend) -> None:
    mine = an_ask("video:1")
    granted(survivor.acquire(mine))
    other = RedisBackend(Settings(LOCATION=replicated.url))
    with Waiting(other, "video:1") as waits:
        eventually(lambda: len(survivor.waiters("video:1").waiting) == 1)
        struck = replicated.serving(SLOT)
        assert struck.client.wait(1, 5000) == 1  # the replica has all of it
        struck.kill()
        assert isinstance(as_soon_as_it_can(lambda: survivor.acquire(mine)), Grant)
        assert [record.name for record in survivor.records()] == ["video:1"]
        assert as_soon_as_it_can(lambda: survivor.release("video:1", mine.token)) is Released.RELEASED
        eventually(lambda: waits.granted, 20)
    other.close()


def test_a_verb_gives_up_in_time(replicated: Cluster, survivor: RedisBackend) -> None:
    """While nobody has replaced the primary, which is silent or gone."""
    granted(survivor.acquire(an_ask("video:1")))
    struck = replicated.serving(SLOT)
    replica = replicated.replicas[replicated.primaries.index(struck)]
    for node in (replica, struck):
        os.kill(node.pid, signal.SIGSTOP)
    for _ in range(2):  # with a connection, and without one
        began = time.monotonic()
        with pytest.raises(BackendUnavailable) as caught:
            survivor.acquire(an_ask("video:2"))
        assert caught.value.down
        assert time.monotonic() - began < 20
