"""What waits with ``on_conflict="queue"`` takes no slot, keeps its order, and delays nobody else, whatever is lost.

On real workers; step by step in ``test_parking.py``.
"""

from __future__ import annotations

from itertools import product
from operator import itemgetter

import pytest
import redis

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
    assert sum(worker.log().count("] received") for worker in workers) == 2 * MESSAGES - 1 + OTHERS


@pytest.mark.parametrize("kind", ["once", "decorated"])
def test_the_pages_of_messages_that_replace_themselves(celery_site, kind, monkeypatch):
    """The next one has the place of the one before, as a retry has, and nobody waits for a message that is there."""
    monkeypatch.delenv(queue_tasks.QUICK)  # what is put right by a promoter takes ten seconds
    celery_site.worker(concurrency=4)
    line = [celery_site.publish(f"{kind}_queue_pages", "a", number) for number in range(4)]
    for number, result in enumerate(line):
        assert celery_site.outcome(result, 8) == ("SUCCESS", [number, 2])
    pages = [(one.more["number"], one.more["page"]) for one in celery_site.events("page", "a")]
    assert sorted(pages, key=itemgetter(0)) == list(product(range(4), range(3)))
    celery_site.wait_until(lambda: not ParkedMessage.objects.exists())


@pytest.mark.parametrize("task", ["once_reject_pages", "decorated_skip_pages"])
def test_the_next_page_of_a_message_is_put_off_as_a_retry_is(celery_site, task):
    """Somebody else has the lock by then; dropped, the message would be lost with half of its work."""
    celery_site.worker(concurrency=2)
    first, then = celery_site.gate(), celery_site.gate()
    pages = celery_site.publish(task, "a", 1, until=first)
    celery_site.wait_until(lambda: celery_site.events("page", "a"))
    other = celery_site.publish("once_hold", "a", until=then, once={"on_conflict": "wait"})
    celery_site.wait_until(lambda: celery_site.lock("hold:a").waiting == 1)
    first.open()
    celery_site.wait_until(lambda: celery_site.result(pages).state == "RETRY")
    then.open()
    assert celery_site.outcome(other)[0] == "SUCCESS"
    assert celery_site.outcome(pages) == ("SUCCESS", [1, 2])


def held(site, task, key="a", **options):
    """A body that runs until its gate is opened: (gate, result)."""
    gate = site.gate()
    result = site.publish(task, key, until=gate, **options)
    site.started(key)
    return gate, result


@pytest.mark.broker
@pytest.mark.parametrize("task", ["queueing_hold", pytest.param("queued_hold", marks=pytest.mark.quick)])
def test_parked_and_run(celery_site, task):
    celery_site.worker(concurrency=2)
    gate, first = held(celery_site, task)
    second = celery_site.publish(task, "a")
    celery_site.wait_until(lambda: celery_site.is_parked(second))
    assert celery_site.outcome(celery_site.publish("hold", "b"))[0] == "SUCCESS"
    gate.open()
    for result in (first, second):
        assert celery_site.outcome(result) == ("SUCCESS", {"status": "success", "key": "a"})
    assert most_at_once(celery_site.events(key="a")) == 1


def test_the_holder_is_killed(celery_site):
    """Another worker's promoter finds what waits behind the dead one's lock; in order, and once each."""
    celery_site.configure(lease=4)
    worker = celery_site.worker(concurrency=1, queues=("first",))
    held(celery_site, "queued_hold", options={"queue": celery_site.queue("first")})
    celery_site.worker(concurrency=2)
    results = [celery_site.publish("queued_hold", "a") for _ in range(3)]
    celery_site.wait_until(lambda: count_parked("hold:a") == 3)
    worker.kill()
    for result in results:
        assert celery_site.outcome(result)[0] == "SUCCESS"
    assert [one.task_id for one in celery_site.events("start", "a")][1:] == [result.id for result in results]


def test_the_broker_is_flushed_while_fifty_wait(celery_site):
    """What is parked is not in the broker."""
    celery_site.worker(concurrency=2)
    gate, _ = held(celery_site, "queued_hold")
    results = [celery_site.publish("queued_hold", "a") for _ in range(50)]
    celery_site.wait_until(lambda: count_parked("hold:a") == 50)
    with redis.Redis.from_url(celery_site.configuration.broker) as broker:
        broker.flushdb()
    gate.open()
    for result in results:
        assert celery_site.outcome(result)[0] == "SUCCESS"
    assert [one.task_id for one in celery_site.events("start", "a")][1:] == [result.id for result in results]


class TestADuplicateIsDropped:
    """Acknowledged late, delivered again while it runs: the duplicate is put off until the work is done."""

    def dropped(self, site):
        site.configure(lease=4, visibility_timeout=1)
        worker = site.worker(concurrency=1)
        gate, result = held(site, "late_hold", once={"on_conflict": "queue"})
        other = site.worker(concurrency=1)
        site.wait_until(lambda: "duplicate: lock" in worker.log() + other.log(), 30)
        return worker, other, gate, result

    def test_and_the_first_one_dies(self, celery_site):
        worker, other, gate, result = self.dropped(celery_site)
        started_by = celery_site.started("a").pid
        victim = worker if started_by in [one.pid for one in worker.members()] else other
        victim.kill()
        gate.open()
        assert celery_site.outcome(result)[0] == "SUCCESS"
        assert len(celery_site.events("start", "a")) == 2
        celery_site.wait_until(lambda: not ParkedMessage.objects.exists())

    def test_and_the_first_one_ends(self, celery_site):
        *_, gate, result = self.dropped(celery_site)
        gate.open()
        assert celery_site.outcome(result)[0] == "SUCCESS"
        celery_site.wait_until(lambda: not ParkedMessage.objects.exists())
        assert len(celery_site.events("start", "a")) == 1
