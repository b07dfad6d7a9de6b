"""The counts of two workers with four children each, one of them killed, beside their own journal: the same."""

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
MESSAGES, KEYS = 60, 5
LATE = {"task_acks_late": True, "task_reject_on_worker_lost": True}


def counted() -> Counter[str]:
    """What the table has."""
    counts = written(KIND)
    found = Counter(
        acquired=counts.get("acquired", 0) + counts.get("waited", 0),
        released=counts.get("released", 0),
        expired=counts.get("expired", 0),
    )
    return found + Counter(skip=counts.get("conflict:skip", 0))


def test_as_they_have_written_down(celery_site: Site) -> None:
    celery_site.configure(**LATE)
    workers = {name: celery_site.worker(concurrency=4, queues=("", name)) for name in ("one", "two")}
    results = [celery_site.publish(TASK, f"k{random.randrange(KEYS)}", random.uniform(0, 0.3)) for _ in range(MESSAGES)]
    gate = celery_site.gate()
    for name, worker in workers.items():
        celery_site.publish(FLUSHING, name, until=gate, options={"queue": celery_site.queue(name)})
        worker.kill_one(celery_site.started(name, seconds=60).pid)
        celery_site.started(name, 2, 60)
    gate.open()
    outcomes = [celery_site.outcome(result, 120)[1]["status"] for result in results]
    celery_site.wait_until(lambda: not celery_site.locks.zcard("task_lock#index"))
    celery_site.locks.flushall()  # what was counted is elsewhere
    for worker in workers.values():  # at once: what is left is written at the end
        worker.terminate()
    for worker in workers.values():
        worker.ended()
    told = Counter(event.event for event in celery_site.events())
    assert told["acquired"] == told["released"] + len(workers) > len(workers)
    skipped = outcomes.count("skipped")
    assert counted() == Counter(
        acquired=told["acquired"], released=told["released"], expired=len(workers), skip=skipped
    )
