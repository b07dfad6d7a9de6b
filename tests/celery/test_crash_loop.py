"""With real workers that are killed: a message that kills who runs it is started a few times, and then it fails."""

from __future__ import annotations

import pytest

from django_tasklock import get_lock_info
from django_tasklock.celery import parked_messages
from tests.support.celery_site.redelivery_tasks import TROUBLE
from tests.testapp.models import Video

pytest_plugins = ["tests.support.celery_site.fixtures"]
pytestmark = [pytest.mark.redis]
SITE_TASKS = ["tests.support.celery_site.redelivery_tasks", "tests.support.celery_site.once_tasks"]


def locked(site, name):
    """The first start has left a trace: with the store too slow it begins without its lock and takes it later, and
    of who dies before that nobody knows that he ever began."""
    site.wait_until(lambda: site.lock(name))


def failed(site, result):
    state, error = site.outcome(result)
    assert state == "FAILURE"
    return type(error).__name__


def nothing_is_left(site):
    # A row whose result is being stored is left alone for a minute.
    site.wait_until(lambda: not parked_messages() and not site.locks.keys("task_lock:*"), 120)


def test_it_ends(celery_site):
    """1 + takeovers executions, of a task of ours or of a decorated one, with a place in the line or without."""
    celery_site.configure(lease=60)
    tasks = ("late_once", "late_skip", "late_hold", "late_queue")
    worker = celery_site.worker(concurrency=4)
    results = [celery_site.publish(task, task, until=celery_site.gate()) for task in tasks]
    for number in range(1, 5):
        starts = [celery_site.started(task, number, 50) for task in tasks]  # its lease is 60
        for task, start in zip(tasks, starts, strict=True):
            if number == 1:
                locked(celery_site, f"hold:{task}")
            worker.kill_one(start.pid)
    for task, result in zip(tasks, results, strict=True):
        assert failed(celery_site, result) == "CrashLoop"
        assert len(celery_site.events("start", task)) == 4
    nothing_is_left(celery_site)
    assert celery_site.waiting() == 0


@pytest.mark.filterwarnings("ignore:Call to deprecated setex:DeprecationWarning")  # by Celery's results
def test_where_the_broker_does_not_say_that_it_is_redelivered(celery_site, monkeypatch):
    """The pool gives the message on, of which the broker knows nothing."""
    # What a pool gives on it does at once. Here it is given back first, and a promoter would be sooner.
    celery_site.configure(lease=60, tasks=("tests.support.celery_site.no_promoter",))
    monkeypatch.setenv(TROUBLE, "unmarked")
    worker = celery_site.worker()
    result = celery_site.publish("frail_once", "a", until=celery_site.gate())
    for number in (1, 2):
        worker.kill_one(celery_site.started("a", number).pid)
    celery_site.wait_until(lambda: result.ready() or len(celery_site.events("start", "a")) > 2)
    assert len(celery_site.events("start", "a")) == 2
    assert type(celery_site.result(result).result).__name__ == "CrashLoop"


def test_the_row_that_it_worked_on(celery_site):
    """The last claim died with its worker; nobody but the sweep may say what that row is now."""
    celery_site.configure(lease=60)
    worker = celery_site.worker(concurrency=2)
    video = Video.objects.create(status="uploading")
    result = celery_site.publish("frail_video", video.pk, until=celery_site.gate())
    for number in (1, 2):
        start = celery_site.started(video.pk, number)
        locked(celery_site, f"video:{video.pk}")
        worker.kill_one(start.pid)
    assert failed(celery_site, result) == "CrashLoop"
    video.refresh_from_db()
    assert video.status == "processing"
    assert get_lock_info(f"video:{video.pk}") is None
