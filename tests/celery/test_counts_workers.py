"""The counts of two workers with four children each, some of them killed, beside their own journal: the same."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from tests.support.celery_site.site import Site
from tests.support.counted import written

pytest_plugins = ["tests.support.celery_site.fixtures"]
pytestmark = [pytest.mark.slow]
SITE_TASKS = ["tests.support.celery_site.campaign_tasks", "tests.support.celery_site.noted_tasks"]

KIND = "hold:{key}"
TASK, FLUSHING = "hardy_decorated", "hardy_flushing"
"""The second one writes its counts before it says that it has started: it is to be killed."""
MESSAGES, KEYS, KILLS = 60, 5, 6
LATE = {"task_acks_late": True, "task_reject_on_worker_lost": True}


def counted() -> Counter[str]:
    """What the table has."""
    counts = written(KIND)
    found = Counter(
        acquired=counts.get("acquired", 0) + counts.get("waited", 0),
        released=counts.get("released", 0),
        forced=counts.get("forced", 0),
    )
    return found + Counter(skip=counts.get("conflict:skip", 0))


def test_as_they_have_written_down(celery_site: Site) -> None:
    celery_site.configure(**LATE)
    workers = [celery_site.worker(concurrency=4) for _ in range(2)]
    results = [celery_site.publish(TASK, f"k{random.randrange(KEYS)}", random.uniform(0, 0.3)) for _ in range(MESSAGES)]
    celery_site.publish(FLUSHING, "long", until=(gate := celery_site.gate()))
    for number in range(KILLS):
        start = celery_site.started("long", number + 1, 60)
        [worker] = [one for one in workers if start.pid in one.children()]
        worker.kill_one(start.pid)
    celery_site.started("long", KILLS + 1, 60)
    gate.open()
    outcomes = [celery_site.outcome(result, 120)[1]["status"] for result in results]
    celery_site.wait_until(lambda: not celery_site.locks.zcard("task_lock#index"))
    celery_site.locks.flushall()  # what was counted is elsewhere
    for worker in workers:  # at once: what is left is written at the end
        worker.terminate()
    for worker in workers:
        worker.ended()
    told = Counter(event.event for event in celery_site.events())
    assert told["acquired"] == told["released"] + KILLS > KILLS
    skipped = outcomes.count("skipped")
    assert counted() == Counter(acquired=told["acquired"], released=told["released"], forced=KILLS, skip=skipped)
