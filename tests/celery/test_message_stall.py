"""The lease of a message vouches for progress: what waits behind slots that hang is given back, and runs elsewhere."""

from __future__ import annotations

import os
import signal
from typing import Any

import pytest
import redis

from django_tasklock.celery.messages import marks
from django_tasklock.operations.state import count_stuck
from tests.support.celery_site.site import Site
from tests.support.celery_workers import Worker

pytest_plugins = ["tests.support.celery_site.fixtures"]
SITE_TASKS = ["tests.support.celery_site.once_tasks"]

LEASE = 4.0
LATE: dict[str, Any] = {"task_acks_late": True, "task_reject_on_worker_lost": True}
PATIENCE = 90.0
"""Seconds within which all happens, on a machine that is busy with other tests."""


@pytest.fixture
def site(celery_site: Site) -> Site:
    """One whose workers give back soon."""
    celery_site.configure(tasklock={"MESSAGE_LEASE": LEASE, "PREFETCH_TIMEOUT": 3}, **LATE)
    return celery_site


@pytest.fixture
def broker(site: Site) -> redis.Redis:
    """A client of the broker."""
    return redis.Redis.from_url(site.broker.url, decode_responses=True)


def mark_of(site: Site, worker: Worker) -> marks.Mark | None:
    return next((mark for mark in marks.read_marks(site.app) if mark.node == worker.name), None)


def settled(site: Site, broker: redis.Redis) -> None:
    """Until nothing is waiting nor unacknowledged."""
    site.wait_until(lambda: not broker.hlen("unacked") and not site.waiting(), PATIENCE)


@pytest.mark.parametrize("how", ["prefork", "stopped", "threads"])
def test_what_waits_behind_slots_that_hang_runs_elsewhere(site: Site, broker: redis.Redis, how: str) -> None:
    """And what they run is delivered once: they may yet go on, and do not run then what was given back."""
    gate, elsewhere = site.gate(), site.gate()
    first = site.worker(concurrency=2, prefetch=2, pool="threads" if how == "threads" else "prefork")
    for key in ("hangs", "hangs too"):
        site.publish("hold", key, until=gate)
        site.started(key)
    for key in ("waits", "waits too"):
        site.publish("hold", key, until=elsewhere)
    site.wait_until(lambda: (mark := mark_of(site, first)) is not None and mark.messages == 4)
    children = first.children() if how == "stopped" else []
    for child in children:
        os.kill(child, signal.SIGSTOP)
    second = site.worker(concurrency=3)  # with a slot for one that is given back once more
    starts = [site.started(key, 1, PATIENCE) for key in ("waits", "waits too")]
    assert {one.pid for one in starts} <= set(second.children())
    site.wait_until(lambda: (mark := mark_of(site, first)) is not None and (mark.stuck, mark.messages) == (2, 2))
    assert "2 wait, and no slot of this worker has begun or ended anything for" in first.log()
    assert count_stuck() == 2
    seen: set[float] = set()

    def reviewed() -> bool:
        seen.update(mark.at for mark in marks.read_marks(site.app) if mark.node == first.name)
        return len(seen) > 4

    site.wait_until(reviewed, PATIENCE)
    elsewhere.open()
    second.terminate()
    second.ended()
    gate.open()
    for child in children:
        os.kill(child, signal.SIGCONT)
    last = site.publish("hold", "after")
    site.outcome(last, PATIENCE)  # the slots have come to what was given back, and fetch again
    settled(site, broker)
    site.wait_until(lambda: (mark := mark_of(site, first)) is not None and not mark.stuck)
    assert sorted(one.key for one in site.events("start")) == ["after", "hangs", "hangs too", "waits", "waits too"]


def test_a_task_whose_own_lock_has_ended_runs_elsewhere(site: Site, broker: redis.Redis) -> None:
    """One without a lock, and one without a timeout, is delivered once however long it takes."""
    site.configure(lease=3, timeout=3)
    gate = site.gate()
    first = site.worker(concurrency=3)
    for key, once in (("ends", None), ("endless", {"timeout": None})):
        site.publish("late_hold", key, until=gate, once=once)
    site.publish("hold", "plain", until=gate)
    for key in ("ends", "endless", "plain"):
        site.started(key)
    site.accepted(first, 3)
    second = site.worker(concurrency=3)
    assert site.started("ends", 2, PATIENCE).pid in second.children()
    assert "late_hold[" in first.log().partition("its lock has ended by its timeout")[0].rpartition("messages:")[2]
    site.wait_until(lambda: (mark := mark_of(site, first)) is not None and mark.stuck == 1 and mark.messages == 2)
    gate.open()
    settled(site, broker)
    assert sorted(one.key for one in site.events("start")) == ["endless", "ends", "ends", "plain"]
