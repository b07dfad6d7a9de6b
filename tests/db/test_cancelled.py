"""A thousand coroutines cancelled at random points: what the servers' and pools' own counters say afterwards."""

from __future__ import annotations

import asyncio
import random

import pytest
from asgiref.sync import ThreadSensitiveContext, sync_to_async
from django.db import connection, connections
from django.db.models import F

from django_tasklock import ConcurrencyLimiter, TaskLock, concurrency_limited, current_claim, model_lock, task_lock
from django_tasklock.backends import get_backend, reset
from django_tasklock.db.pools import figures
from django_tasklock.locks.heartbeat import heartbeat
from tests.support.database_pool import checked_out, pooled
from tests.support.guards import AGAIN
from tests.support.stores import eventually
from tests.testapp.models import Video

pytest_plugins = ["tests.support.redis_fixtures"]
pytestmark = [pytest.mark.database, pytest.mark.redis, pytest.mark.django_db(transaction=True)]

CANCELLED = {False: 1000, True: 250}
"""Struck in the middle: all in one thread, as in a loop of one's own, and each in a thread, as under ASGI."""
AT_ONCE = 25
ROWS = 10


@model_lock(Video, "cancelled:{pk}", guard=AGAIN, pk="pk", on_conflict="wait", blocking_timeout=120)
async def guarded(pk: int) -> None:
    """Asks the database in every way a coroutine can, and takes a lock inside."""
    await Video.objects.filter(pk=pk).aupdate(progress=F("progress") + 1)
    async with TaskLock(f"cancelled:inner:{pk}", blocking_timeout=120):
        await sync_to_async(list)(Video.objects.filter(pk__lte=pk))
        await asyncio.sleep(0.002)
    await current_claim().aupdate(hls_file=str(pk))
    async for _ in Video.objects.order_by("pk"):
        await asyncio.sleep(0)


@task_lock("cancelled:plain:{pk}", on_conflict="wait", blocking_timeout=120)
async def plain(pk: int) -> None:
    """No row: only the body's own queries."""
    await Video.objects.acount()
    await asyncio.sleep(0.002)
    await Video.objects.filter(pk=pk).aexists()


@concurrency_limited("cancelled", 2, blocking_timeout=120)
async def limited(pk: int) -> None:
    """Two at once: most are cancelled while they wait for a permit."""
    await Video.objects.acount()
    await asyncio.sleep(0.002)


async def cancelled(kind, pk, seconds, own_thread, twice):
    async def call():
        if not own_thread:
            return await kind(pk)
        async with ThreadSensitiveContext():  # as for each request under ASGI
            return await kind(pk)

    work = asyncio.ensure_future(call())
    await asyncio.sleep(seconds)
    struck = not work.done()
    work.cancel()
    if twice:  # a timeout inside of a task that is cancelled
        await asyncio.sleep(seconds / 50)
        work.cancel()
    await asyncio.wait([work])
    if not work.cancelled():
        work.result()
    return struck and work.cancelled()


async def thousand(own_thread):
    """Cancels until so many were struck in the middle."""
    drawn = random.Random(2501)
    rows = [row.pk async for row in Video.objects.order_by("pk")]
    await sync_to_async(connections.close_all)()
    struck = longest = 0
    while struck < CANCELLED[own_thread]:
        longest = longest % 0.25 + 0.01
        struck += sum(
            await asyncio.gather(
                *(
                    cancelled(
                        drawn.choice([guarded, plain, limited]),
                        drawn.choice(rows),
                        drawn.uniform(0, longest),
                        own_thread,
                        drawn.random() < 0.3,
                    )
                    for _ in range(AT_ONCE)
                )
            )
        )


def clients(store):
    """How many connections Redis has, of anybody."""
    return store.info("clients")["connected_clients"]


def nothing_is_left(store, before):
    """Once the heartbeat has given back what the cancelled ones could not."""
    eventually(lambda: not heartbeat.reconciler and not len(heartbeat))
    eventually(lambda: ConcurrencyLimiter("cancelled", 2).info().used == 0)
    assert not [lock.name for lock in get_backend().records() if lock.name.startswith("cancelled:")]
    assert set(Video.objects.values_list("lock_token", flat=True)) == {""}

    def nobody_is_connected():
        reset()  # again: a thread that was asking the store just then has put its connection back since
        return clients(store) <= before

    eventually(nobody_is_connected)


@pytest.mark.slow
@pytest.mark.parametrize("own_thread", [False, True], ids=["one thread", "a thread each"])
def test_no_connection_is_left_checked_out(own_thread, store, caplog):
    """Gold standard 8.41."""
    reset()  # and not close(): who uses a closed store connects for each request, which takes ten times as long
    before = clients(store)
    Video.objects.bulk_create(Video(status="ready") for _ in range(ROWS))
    if connection.vendor == "postgresql":
        with pooled(max_size=AT_ONCE + 2) as pool:
            asyncio.run(thousand(own_thread))
            assert checked_out(pool) == 0
            assert pool.get_stats().get("requests_errors", 0) == 0
            nothing_is_left(store, before)
    else:
        asyncio.run(thousand(own_thread))
        connection.close()
        assert figures("default").checked_out == 0
        nothing_is_left(store, before)
    assert "left database connections open" not in caplog.text
    assert "Traceback" not in caplog.text
