"""A message that kills who runs it is started again a few times, and then it fails."""

from __future__ import annotations

import pytest

from django_tasklock import get_lock_info
from django_tasklock.celery import parked_messages
from tests.support.guards import held_by_another
from tests.testapp.models import Video

pytest_plugins = ["tests.support.celery_site.fixtures"]
pytestmark = [pytest.mark.redis]
SITE_TASKS = ["tests.support.celery_site.redelivery_tasks", "tests.support.celery_site.once_tasks"]


def locked(site, name):
    """The first start has left a trace: with the store too slow it begins without its lock and takes it later, and
    of who dies before that nobody knows that he ever began."""
    site.wait_until(lambda: site.lock(name))


def killed(site, worker, key, times, name=None):
    """Kill whoever runs ``key``, so many times."""
    done = len(site.events("killed"))
    for number in range(done + 1, done + times + 1):
        start = site.started(key, number, 20)
        if number == 1:
            locked(site, name or f"hold:{key}")
        worker.kill_one(start.pid)


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


def test_as_often_as_the_task_says(celery_site):
    celery_site.configure(lease=60)
    worker = celery_site.worker(concurrency=2)
    result = celery_site.publish("frail_once", "a", until=celery_site.gate(), once={"unique": "until_finish"})
    killed(celery_site, worker, "a", 2)
    assert failed(celery_site, result) == "CrashLoop"
    assert len(celery_site.events("start", "a")) == 2
    nothing_is_left(celery_site)  # not even what made it the only one
    assert celery_site.publish("frail_once", "a", once={"unique": "until_finish"}).id != result.id


def test_retrying_for_everything_is_not_retrying_for_that(celery_site):
    """Otherwise ``autoretry_for=(Exception,)`` would count from the beginning, for ever."""
    celery_site.configure(lease=60)
    worker = celery_site.worker(concurrency=2)
    result = celery_site.publish("stubborn", "a", until=celery_site.gate())
    killed(celery_site, worker, "a", 2)
    assert failed(celery_site, result) == "CrashLoop"
    assert len(celery_site.events("start", "a")) == 2


def test_a_run_in_between_counts_from_the_beginning(celery_site):
    """One dies, the second says retry(): its next try is a message of its own, of which one may die too."""
    celery_site.configure(lease=60)
    worker, first, second = celery_site.worker(concurrency=2), celery_site.gate(), celery_site.gate()
    result = celery_site.publish("twice", "a", first, second)
    tries = lambda number: lambda: len(celery_site.events("try")) == number  # noqa: E731
    for number, gate in ((1, first), (3, second)):
        celery_site.wait_until(tries(number))
        worker.kill_one(celery_site.events("try")[-1].pid)
        celery_site.wait_until(tries(number + 1))
        gate.open()
    assert celery_site.outcome(result)[1] == "done"
    nothing_is_left(celery_site)


def test_what_was_never_started_is_not_counted(celery_site):
    """Workers die with the message in their buffers."""
    celery_site.configure(lease=60, visibility_timeout=1)
    result = None
    for number in range(1, 5):
        worker = celery_site.worker(concurrency=1, prefetch=2, queues=("blockers",))
        blockers = {"queue": celery_site.queue("blockers")}
        blocker = celery_site.publish("hold", f"blocker{number}", until=celery_site.gate(), options=blockers)
        celery_site.started(f"blocker{number}")
        result = result or celery_site.publish("frail_once", "a")
        # Not before: what was restored early would be started in the blocker's place.
        celery_site.app.control.add_consumer(celery_site.queue(), destination=[worker.name])
        celery_site.wait_until(lambda worker=worker, result=result: result.id in worker.log())
        worker.kill()
        assert blocker.state == "PENDING"
    celery_site.worker(concurrency=1)
    assert celery_site.outcome(result)[1]["status"] == "success"
    assert len(celery_site.events("start", "a")) == 1
    nothing_is_left(celery_site)


def test_the_row_that_it_worked_on(celery_site):
    """The last claim died with its worker; nobody but the sweep may say what that row is now."""
    celery_site.configure(lease=60)
    worker = celery_site.worker(concurrency=2)
    video = Video.objects.create(status="uploading")
    result = celery_site.publish("frail_video", video.pk, until=celery_site.gate())
    killed(celery_site, worker, video.pk, 2, f"video:{video.pk}")
    assert failed(celery_site, result) == "CrashLoop"
    video.refresh_from_db()
    assert video.status == "processing"
    assert get_lock_info(f"video:{video.pk}") is None


def test_put_off_in_between(celery_site):
    """Another has the lock when it comes back: it is sent again, and its count stays."""
    celery_site.configure(lease=60)
    worker = celery_site.worker(concurrency=2)
    result = celery_site.publish("frail_once", "a", until=celery_site.gate(), once={"on_conflict": "retry"})
    killed(celery_site, worker, "a", 1)
    second = celery_site.started("a", 2, 20)
    celery_site.locks.delete("task_lock:hold:a")
    with held_by_another("hold:a", lease=4):
        worker.kill_one(second.pid)
        celery_site.wait_until(lambda: result.state == "RETRY", 20)
    assert failed(celery_site, result) == "CrashLoop"
    assert len(celery_site.events("start", "a")) == 2
    nothing_is_left(celery_site)
