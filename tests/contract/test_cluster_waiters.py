"""Waiters in a Redis Cluster: woken where their lock lies, also when its slot has moved."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
import redis
from asgiref.sync import async_to_sync

from django_tasklock.types import Busy, Grant, Released
from tests.support.cluster_acts import SLOT, Waiting, away, listening, scripts
from tests.support.stores import an_ask, eventually, granted
from tests.support.twins import TWINS

pytest_plugins = ["tests.support.cluster_fixtures"]
pytestmark = [pytest.mark.redis, pytest.mark.slow]


def refused() -> None:
    """In place of a connection."""
    raise redis.ConnectionError("refused")


def heard(cluster: Any, token: str) -> int:
    """How many listen on the channel of that waiter, where the locks lie."""
    client = cluster.serving(SLOT).client
    channel = client.hget("{task_lock}#waiters:video:1", token).split()[1]
    return int(dict(client.pubsub_numsub(channel))[channel])


async def maybe(answer: Any) -> Any:
    """Await what can be."""
    return await answer if asyncio.iscoroutine(answer) else answer


def test_a_contended_acquisition_is_two_trips_and_a_push(cluster, backend, other):
    mine = an_ask("video:1")
    for _ in range(2):  # the second time their connections are there, and the scripts are known
        granted(backend.acquire(mine))
        before = sum(scripts(cluster))
        with Waiting(other, "video:1", 30.0) as waits:
            eventually(lambda: listening(cluster, "video:1") == 1)
            backend.release("video:1", mine.token)
            eventually(lambda: waits.granted, 5)
        trips = sum(scripts(cluster)) - before
        other.release("video:1", waits.request.token)
    assert trips == 2  # to join, and the release


@TWINS
def test_a_waiter_whose_slot_moved_is_passed_over_until_it_asks(cluster, backend, other, way):
    """It listens where the slot was: what is published at the other node must not reach it; it keeps its place."""
    mine = an_ask("video:1")
    granted(backend.acquire(mine))
    first, second = other.waiter(an_ask("video:1")), backend.waiter(an_ask("video:1"))

    async def scenario() -> None:
        first_asks = first.acquire if way == "sync" else first.aacquire
        assert isinstance(await maybe(first_asks()), Busy)
        cluster.move(SLOT, away(cluster))
        assert isinstance(second.acquire(), Busy)
        assert backend.release("video:1", mine.token) is Released.RELEASED
        record = backend.get("video:1")
        assert record is not None
        assert record.token == second.request.token
        heard = await first.await_(0.2) if way == "async" else first.wait(0.2)
        assert heard is None
        assert isinstance(await maybe(first_asks()), Busy)
        assert backend.release("video:1", second.request.token) is Released.RELEASED
        heard = await first.await_(2.0) if way == "async" else first.wait(2.0)
        assert isinstance(heard, Grant)
        await maybe(first.leave() if way == "sync" else first.aleave())
        second.leave()

    async_to_sync(scenario)()


@TWINS
def test_it_listens_where_the_slot_is_now_as_soon_as_it_looks(cluster, backend, other, way):
    mine = an_ask("video:1")
    granted(backend.acquire(mine))
    waiter = other.waiter(an_ask("video:1"))

    async def scenario() -> None:
        asks = waiter.acquire if way == "sync" else waiter.aacquire
        assert isinstance(await maybe(asks()), Busy)
        cluster.move(SLOT, away(cluster))
        assert isinstance(await maybe(asks()), Busy)  # it notes that it looks by itself,
        assert isinstance(await maybe(asks()), Busy)  # and where it listens from now on
        assert listening(cluster, "video:1") == 1
        backend.release("video:1", mine.token)
        heard = await waiter.await_(2.0) if way == "async" else waiter.wait(2.0)
        assert isinstance(heard, Grant)
        await maybe(waiter.leave() if way == "sync" else waiter.aleave())

    async_to_sync(scenario)()


def test_a_dead_waiter_is_passed_over_at_once(cluster, backend, other, monkeypatch):
    mine = an_ask("video:1")
    granted(backend.acquire(mine))
    dead = other.waiter(an_ask("video:1"))
    assert isinstance(dead.acquire(), Busy)
    with Waiting(backend, "video:1", looks=60) as alive:
        eventually(lambda: len(backend.waiters("video:1").waiting) == 2)
        assert all(one.present for one in backend.waiters("video:1").waiting)
        monkeypatch.setattr(other.client, "connect", refused)
        other.listener.renew()
        eventually(lambda: heard(cluster, dead.request.token) == 0)
        backend.release("video:1", mine.token)
        eventually(lambda: alive.granted, 20)  # long before it looks by itself
