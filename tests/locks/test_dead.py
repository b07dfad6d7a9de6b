"""A lock, or a permit, of a process that is proven dead is in nobody's way; what is not proven is left alone."""

from __future__ import annotations

import asyncio
import json
import time

import pytest

from django_tasklock import ConcurrencyLimiter, TaskLock, TaskLockAcquireError, acquire_task_lock, counts, task_lock
from django_tasklock.backends import get_backend
from django_tasklock.types import AcquireRequest, Grant
from tests.support.guards import new_token
from tests.support.stores import clear
from tests.support.sweeping import ELSEWHERE, HOUR, MINUTE, dead_holder, hold

pytestmark = pytest.mark.redis


@pytest.fixture(autouse=True)
def _nothing_held():
    clear("redis")


@task_lock("video:{pk}", on_conflict="raise")
def work(pk: int) -> str:
    return "done"


async def in_a_coroutine(**options: float) -> bool:
    async with TaskLock("video:1", **options) as lock:
        return lock.held


def in_a_block(**options: float) -> bool:
    with TaskLock("video:1", **options) as lock:
        return lock.held


TAKERS = {
    "a block": in_a_block,
    "a block that waits": lambda: in_a_block(blocking_timeout=30),
    "a coroutine": lambda: asyncio.run(in_a_coroutine()),
    "a coroutine that waits": lambda: asyncio.run(in_a_coroutine(blocking_timeout=30)),
    "several names": lambda: TaskLock("video:1", "video:2").acquire(),
    "a decorated function": lambda: work(1) == "done",
    "a plain function": lambda: acquire_task_lock("video:1"),
}


@pytest.mark.parametrize("taker", TAKERS)
def test_every_taker_takes_it_over(taker, caplog):
    hold("video:1", dead_holder())
    began = time.monotonic()
    assert TAKERS[taker]()
    assert time.monotonic() - began < 20, "it did not wait for the lease, of a minute"
    assert "video:1" in caplog.text
    assert "died" in caplog.text


def test_it_is_counted_as_expired_and_not_as_released_by_force():
    counts.forget()
    hold("video:1", dead_holder(), kind="video:{pk}")
    assert in_a_block()
    events = {event for event, kind, *_ in counts.pending() if kind == "video:{pk}"}
    assert counts.EXPIRED in events
    assert counts.FORCED not in events


def test_all_permits_of_the_dead_are_free():
    permits = get_backend().permits
    for _ in range(3):
        request = AcquireRequest("encode", new_token(), MINUTE, HOUR, dead_holder(), limit=3)
        assert isinstance(permits.acquire(request), Grant)
    with ConcurrencyLimiter("encode", 3, blocking=False) as limiter:
        assert [one.holder for one in limiter.members()].count(json.loads(dead_holder())["host"]) == 0
        assert len(limiter.members()) == 3, "those in nobody's way end with their leases"


@pytest.mark.parametrize(
    ("holder", "ttl", "said"),
    [
        (ELSEWHERE, MINUTE, "3600 s of its timeout left"),
        (dead_holder(), HOUR, "its process has ended, so it is free in 3600 s"),
    ],
    ids=["of another machine", "without a lease, which may be meant to outlive its process"],
)
def test_what_is_not_proven_is_left_alone_and_told(holder, ttl, said):
    hold("video:1", holder, ttl=ttl)
    with pytest.raises(TaskLockAcquireError, match=said):
        in_a_block()
