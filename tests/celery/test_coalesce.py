"""With ``on_conflict="coalesce"`` at most one runs and one waits, the newest; the others say what became of them.

On real workers; step by step in ``test_parking.py``.
"""

from __future__ import annotations

import pytest
from celery import chord, group

from django_tasklock.celery import count_parked, parked_messages
from django_tasklock.models import ParkedMessage
from tests.support.celery_site import queue_tasks

pytest_plugins = ["tests.support.celery_site.fixtures"]
SITE_TASKS = ["tests.support.celery_site.once_tasks", "tests.support.celery_site.queue_tasks"]

COALESCED = {"status": "skipped", "reason": "coalesced", "name": "hold:a"}


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setenv(queue_tasks.QUICK, "1")


def holding(site, task="coalescing_hold", key="a", name="until"):
    """One that runs until its gate is opened: (gate, result)."""
    gate = site.gate()
    result = site.publish(task, key, until=gate)
    site.started(key)
    return gate, result


def test_a_thousand_during_one_run(celery_site):
    """One running and one pending, with the newest data."""
    for _ in range(2):
        celery_site.worker(concurrency=2)
    gate, first = holding(celery_site)
    results = [celery_site.publish("coalescing_hold", "a", number=number) for number in range(1000)]
    for result in results[:-1]:
        assert celery_site.outcome(result, 300) == ("SUCCESS", COALESCED)
    celery_site.wait_until(lambda: [one.task_id for one in parked_messages("hold:a")] == [results[-1].id], 20)
    assert count_parked("hold:a") == 1
    celery_site.wait_until(lambda: celery_site.is_parked(results[-1]))
    gate.open()
    assert celery_site.outcome(first)[0] == "SUCCESS"
    assert celery_site.outcome(results[-1]) == ("SUCCESS", {"status": "success", "key": "a"})
    assert [one.more for one in celery_site.events("start", "a")] == [{}, {"number": 999}]
    celery_site.wait_until(lambda: not ParkedMessage.objects.exists())
    assert celery_site.lock("hold:a") is None


@pytest.mark.parametrize("kind", ["once", "decorated"])
def test_the_next_page_of_a_running_message_does_not_replace_a_newer_one(celery_site, kind):
    celery_site.worker(concurrency=2)
    gate = celery_site.gate()
    older = celery_site.publish(f"{kind}_coalesce_pages", "a", 1, until=gate)
    celery_site.wait_until(lambda: celery_site.events("page", "a"))
    newer = celery_site.publish(f"{kind}_coalesce_pages", "a", 2)
    celery_site.wait_until(lambda: celery_site.is_parked(newer))
    gate.open()
    assert celery_site.outcome(newer) == ("SUCCESS", [2, 2])
    assert celery_site.outcome(older) == ("SUCCESS", COALESCED)


@pytest.mark.parametrize("task", ["decorated_coalesce", pytest.param("coalescing_hold", marks=pytest.mark.quick)])
def test_two_wait_for_one(celery_site, task):
    celery_site.worker(concurrency=2)
    gate, first = holding(celery_site, task)
    older = celery_site.publish(task, "a", number=1)
    celery_site.wait_until(lambda: count_parked("hold:a") == 1)
    newer = celery_site.publish(task, "a", number=2)
    assert celery_site.outcome(older) == ("SUCCESS", COALESCED)
    gate.open()
    assert celery_site.outcome(newer)[1]["status"] == "success"
    assert [one.task_id for one in celery_site.events("start", "a")] == [first.id, newer.id]


def test_no_chord_hangs(celery_site):
    """A replaced member has a result, so the others are not waited for in vain."""
    celery_site.worker(concurrency=2)
    gate, _ = holding(celery_site)
    task = celery_site.task("coalescing_hold")
    body = queue_tasks.told.s("chord")
    whole = chord(group(task.s("a", number=number) for number in range(5)), body).apply_async()
    celery_site.wait_until(lambda: len([one for one in whole.parent.results if one.ready()]) == 4)
    gate.open()
    assert celery_site.outcome(whole.id)[0] == "SUCCESS"
    reasons = [one.get("reason", one["status"]) for one in celery_site.events("told", "chord")[0].more["result"]]
    assert sorted(reasons) == ["coalesced"] * 4 + ["success"]
