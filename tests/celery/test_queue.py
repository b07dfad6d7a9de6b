"""What waits in the queue takes no slot, keeps its order, and delays nobody else, whatever is lost.

With ``on_conflict="coalesce"`` at most one runs and one waits, the newest; the others say what became of them.
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
COALESCED = {"status": "skipped", "reason": "coalesced", "name": "hold:a"}


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setenv(queue_tasks.QUICK, "1")


def held(site, task, key="a", **options):
    """A body that runs until its gate is opened: (gate, result)."""
    gate = site.gate()
    result = site.publish(task, key, until=gate, **options)
    site.started(key)
    return gate, result


def published(site):
    """How many messages have been put into the broker: LPUSH is what Celery does there for each."""
    return site.app.backend.client.info("commandstats").get("cmdstat_lpush", {"calls": 0})["calls"]


def test_200_messages_of_one_key_over_two_workers(celery_site):
    """Issue 3, 2. Gold standard 8.25 (throttled jobs starve others), 8.26 (slots filled with waiters)."""
    workers = [celery_site.worker(concurrency=4) for _ in range(2)]
    gate, first = held(celery_site, "queued_hold", "line")
    before = published(celery_site)
    line = [first, *(celery_site.publish("queued_hold", "line") for _ in range(MESSAGES - 1))]
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


def test_the_holder_is_killed_and_the_broker_flushed(celery_site):
    """What is parked is not in the broker. Another worker's promoter finds it; it runs in order, and once each."""
    celery_site.configure(lease=4)
    worker = celery_site.worker(concurrency=1, queues=("first",))
    held(celery_site, "queued_hold", options={"queue": celery_site.queue("first")})
    celery_site.worker(concurrency=2)
    results = [celery_site.publish("queued_hold", "a") for _ in range(20)]
    celery_site.wait_until(lambda: count_parked("hold:a") == 20)
    with redis.Redis.from_url(celery_site.configuration.broker) as broker:
        broker.flushdb()
    worker.kill()
    for result in results:
        assert celery_site.outcome(result)[0] == "SUCCESS"
    assert [one.task_id for one in celery_site.events("start", "a")][1:] == [result.id for result in results]


class TestPages:
    """Of messages that replace themselves."""

    def test_the_next_one_has_the_place_of_the_one_before(self, celery_site, monkeypatch):
        """As a retry has, and nobody waits for a message that is there."""
        monkeypatch.delenv(queue_tasks.QUICK)
        celery_site.configure(tasks=("tests.support.celery_site.no_promoter",))
        celery_site.worker(concurrency=4)
        line = [celery_site.publish("queue_pages", "a", number) for number in range(4)]
        for number, result in enumerate(line):
            assert celery_site.outcome(result) == ("SUCCESS", [number, 2])
        pages = [(one.more["number"], one.more["page"]) for one in celery_site.events("page", "a")]
        assert sorted(pages, key=itemgetter(0)) == list(product(range(4), range(3)))
        celery_site.wait_until(lambda: not ParkedMessage.objects.exists())

    def test_the_next_one_is_put_off_as_a_retry_is(self, celery_site):
        """Somebody else has the lock by then; dropped, the message would be lost with half of its work."""
        celery_site.worker(concurrency=2)
        first, then = celery_site.gate(), celery_site.gate()
        pages = celery_site.publish("reject_pages", "a", 1, until=first)
        celery_site.wait_until(lambda: celery_site.events("page", "a"))
        other = celery_site.publish("once_hold", "a", until=then, once={"on_conflict": "wait"})
        celery_site.wait_until(lambda: celery_site.lock("hold:a").waiting == 1)
        first.open()
        celery_site.wait_until(lambda: celery_site.result(pages).state == "RETRY")
        then.open()
        assert celery_site.outcome(other)[0] == "SUCCESS"
        assert celery_site.outcome(pages) == ("SUCCESS", [1, 2])

    def test_the_next_one_does_not_replace_a_newer_message(self, celery_site):
        celery_site.worker(concurrency=2)
        gate = celery_site.gate()
        older = celery_site.publish("coalesce_pages", "a", 1, until=gate)
        celery_site.wait_until(lambda: celery_site.events("page", "a"))
        newer = celery_site.publish("coalesce_pages", "a", 2)
        celery_site.wait_until(lambda: celery_site.is_parked(newer))
        gate.open()
        assert celery_site.outcome(newer) == ("SUCCESS", [2, 2])
        assert celery_site.outcome(older) == ("SUCCESS", COALESCED)


class TestCoalesce:
    def test_hundreds_during_one_run(self, celery_site):
        """One running and one pending, with the newest data."""
        for _ in range(2):
            celery_site.worker(concurrency=2)
        gate, first = held(celery_site, "coalescing_hold")
        results = [celery_site.publish("coalescing_hold", "a", number=number) for number in range(300)]
        for result in results[:-1]:
            assert celery_site.outcome(result, 120) == ("SUCCESS", COALESCED)
        celery_site.wait_until(lambda: [one.task_id for one in parked_messages("hold:a")] == [results[-1].id], 20)
        celery_site.wait_until(lambda: celery_site.is_parked(results[-1]))
        gate.open()
        assert celery_site.outcome(first)[0] == "SUCCESS"
        assert celery_site.outcome(results[-1]) == ("SUCCESS", {"status": "success", "key": "a"})
        assert [one.more for one in celery_site.events("start", "a")] == [{}, {"number": 299}]
        celery_site.wait_until(lambda: not ParkedMessage.objects.exists())
        celery_site.wait_until(lambda: celery_site.lock("hold:a") is None)
