"""The counts of two workers with four children each, some of them killed, beside their own journal: the same."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from django_tasklock.operations.metrics import read_totals
from tests.support.celery_site.site import Site
from tests.support.celery_workers import Worker

pytest_plugins = ["tests.support.celery_site.fixtures"]
pytestmark = [pytest.mark.slow]
SITE_TASKS = ["tests.support.celery_site.campaign_tasks", "tests.support.celery_site.noted_tasks"]

KIND = "hold:{key}"
TASK = "hardy_decorated"
MESSAGES, KEYS, KILLS = 60, 5, 6
LATE = {"task_acks_late": True, "task_reject_on_worker_lost": True}


def counted() -> Counter[str]:
    """What the store says."""
    counts = read_totals().of_kind(KIND)
    found = Counter(acquired=counts.acquired, released=counts.released, lost=counts.expired + counts.forced)
    return found + Counter(skip=counts.conflicts.get("skip", 0))


def work(site: Site, workers: list[Worker]) -> Counter[str]:
    """Let them work through messages for a few keys, and kill children at work. Return what they have written down."""
    before = len(site.events())
    results = [site.publish(TASK, f"k{random.randrange(KEYS)}", random.uniform(0, 0.3)) for _ in range(MESSAGES)]
    long = f"long after {before}"
    site.publish(TASK, long, until=(gate := site.gate()))
    for number in range(KILLS):
        start = site.started(long, number + 1, 60)
        [worker] = [one for one in workers if start.pid in one.children()]
        worker.kill_one(start.pid)
    site.started(long, KILLS + 1, 60)
    gate.open()
    outcomes = [site.outcome(result, 120)[1]["status"] for result in results]
    site.wait_until(lambda: not site.locks.zcard("task_lock#index"))
    told = Counter(event.event for event in site.events()[before:])
    found = Counter(acquired=told["acquired"], released=told["released"], lost=KILLS)
    return found + Counter(skip=outcomes.count("skipped"))


def test_as_they_have_written_down(celery_site: Site) -> None:
    celery_site.configure(**LATE)
    workers = [celery_site.worker(concurrency=4) for _ in range(2)]
    told = work(celery_site, workers)
    assert told["acquired"] == told["released"] + KILLS > KILLS
    assert counted() == told
    celery_site.locks.flushall()  # takes what was counted so far, and no more than that
    assert not counted().total()
    told = work(celery_site, workers)
    assert counted() == told
