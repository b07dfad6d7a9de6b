"""The slot of the locks in a Redis Cluster, which moves under them."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from django_tasklock import BackendUnavailable
from django_tasklock.types import Busy, Released, Renewal, RenewalResult
from tests.support.cluster import Node
from tests.support.cluster_acts import SLOT, Waiting, away
from tests.support.stores import an_ask, eventually, granted
from tests.support.twins import TWINS, call

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


@TWINS
def test_verbs_follow_a_slot(cluster, backend, way):
    mine = an_ask("video:1")
    grant = granted(call(way, backend, "acquire", mine))
    for _ in range(3):
        cluster.move(SLOT, away(cluster))
        assert isinstance(call(way, backend, "acquire", an_ask("video:1")), Busy)
        assert granted(call(way, backend, "acquire", mine)).fence == grant.fence
        assert backend.renew([Renewal("video:1", mine.token, 60_000)]) == [RenewalResult.RENEWED]
        assert [record.name for record in backend.records()] == ["video:1"]
    cluster.move(SLOT, away(cluster))
    assert call(way, backend, "release", "video:1", mine.token) is Released.RELEASED


@TWINS
def test_a_verb_waits_while_its_slot_is_moved(cluster, backend, way):
    mine, target = an_ask("video:1"), away(cluster)
    granted(call(way, backend, "acquire", mine))
    source = cluster.begin_move(SLOT, target)
    with ThreadPoolExecutor(1) as pool:
        released = pool.submit(call, way, backend, "release", "video:1", mine.token)
        time.sleep(0.2)
        assert not released.done()
        cluster.move_keys(SLOT, source, target)
        time.sleep(0.1)
        assert not released.done()
        cluster.end_move(SLOT, target)
        assert released.result(5) is Released.RELEASED


@TWINS
@pytest.mark.slow
@pytest.mark.parametrize("halfway", [0, 1, 3, 100])
def test_while_a_slot_is_moved_no_script_runs_and_the_store_is_unavailable_in_time(cluster, backend, way, halfway):
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
            call(way, backend, "release", "video:1", mine.token)
        assert time.monotonic() - began < 20
        assert (caught.value.down, caught.value.doubt) == (False, False)
        assert waits.granted is None
        assert [keys_in(node) for node in (source, target)] == before
        cluster.move_keys(SLOT, source, target)
        cluster.end_move(SLOT, target)
        assert call(way, backend, "release", "video:1", mine.token) is Released.RELEASED
        eventually(lambda: waits.granted, 5)


@TWINS
def test_nodes_that_do_not_agree_are_told_from_a_slot_that_is_moved(cluster, backend, way):
    """So Redis 7.0 stays when slots are moved back and forth faster than the nodes hear of it."""
    node, other = cluster.serving(SLOT), away(cluster)
    for one, said in ((node, other), (other, node)):
        one.client.execute_command("CLUSTER", "SETSLOT", SLOT, "NODE", said.id)
    with pytest.raises(BackendUnavailable, match=f"disagree about which node serves slot {SLOT}: see") as caught:
        call(way, backend, "acquire", an_ask("video:1"))
    assert (caught.value.down, caught.value.doubt) == (False, False)
    cluster.end_move(SLOT, node)
    granted(call(way, backend, "acquire", an_ask("video:1")))
