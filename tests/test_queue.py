"""``on_conflict="queue"`` on real workers: what waits takes no slot, keeps its order, and delays nobody else."""

from __future__ import annotations

import pytest

from django_tasklock.celery import count_parked, parked_messages
from django_tasklock.models import ParkedMessage
from tests.support.celery_site import queue_tasks
from tests.support.celery_site.journal import most_at_once

pytest_plugins = ["tests.support.celery_site.fixtures"]
SITE_TASKS = ["tests.support.celery_site.once_tasks", "tests.support.celery_site.queue_tasks"]

MESSAGES, OTHERS = 200, 50


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setenv(queue_tasks.QUICK, "1")


def published(site):
    """How many messages have been put into the broker: LPUSH is what Celery does there for each."""
    return site.app.backend.client.info("commandstats").get("cmdstat_lpush", {"calls": 0})["calls"]


def test_200_messages_of_one_key_over_two_workers(celery_site):
    """Issue 3, 2. Gold standard 8.25 (throttled jobs starve others), 8.26 (slots filled with waiters)."""
    workers = [celery_site.worker(concurrency=4) for _ in range(2)]
    gate = celery_site.gate()
    line = [celery_site.publish("queued_hold", "line", until=gate)]
    celery_site.started("line")
    before = published(celery_site)
    line += [celery_site.publish("queued_hold", "line") for _ in range(MESSAGES - 1)]
    others = [celery_site.publish("queued_hold", f"other-{number}") for number in range(OTHERS)]
    for result in others:  # with one body in a slot and 199 behind it, everybody else is served
        assert celery_site.outcome(result)[0] == "SUCCESS"
    celery_site.wait_until(lambda: count_parked("hold:line") == MESSAGES - 1)
    assert [one.task_id for one in parked_messages("hold:line")] == [result.id for result in line[1:]]
    assert {celery_site.result(result).state for result in line[1:]} == {"PARKED"}
    gate.open()
    for result in line:
        assert celery_site.outcome(result, 60)[0] == "SUCCESS"
    starts = celery_site.events("start", "line")
    assert [one.task_id for one in starts] == [result.id for result in line]
    assert most_at_once(celery_site.events(key="line")) == 1
    assert len({one.pid for one in starts}) > 1
    assert ParkedMessage.objects.count() == 0
    assert celery_site.lock("hold:line") is None
    # Each parked message is in the broker twice: from its publisher, and when it is its turn.
    assert published(celery_site) - before == 2 * (MESSAGES - 1) + OTHERS
    received = sum(worker.log().count("queued_hold[") for worker in workers)
    assert sum(worker.log().count("] received") for worker in workers) == 2 * MESSAGES - 1 + OTHERS
    assert received < 5 * (MESSAGES + OTHERS)


def test_without_a_gate_they_start_in_the_order_of_publication_too(celery_site):
    for _ in range(2):
        celery_site.worker(concurrency=2)
    line = [celery_site.publish("queued_hold", "line", seconds=0.005) for _ in range(60)]
    for result in line:
        assert celery_site.outcome(result)[0] == "SUCCESS"
    assert [one.task_id for one in celery_site.events("start", "line")] == [result.id for result in line]
    assert most_at_once(celery_site.events(key="line")) == 1
