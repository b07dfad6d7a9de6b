"""The row of a message is locked by another transaction: the message waits for it, and no work is dropped as done."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.support.guards import locked_row
from tests.testapp.models import Video

pytest_plugins = ["tests.support.celery_site.fixtures"]
pytestmark = pytest.mark.database
SITE_TASKS = ["tests.support.celery_site.once_tasks", "tests.support.celery_site.queue_tasks"]


def test_it_is_put_off_whatever_on_conflict_says(celery_site):
    """The lock was its own, so nobody else does the work; a duplicate finds it done, or does it."""
    worker = celery_site.worker(concurrency=7)  # each waits for as long as its database lets it
    words = ("queue", "coalesce", "retry", "reject", "skip", "raise", "wait")
    videos = {word: Video.objects.create() for word in words}
    results, duplicates = {}, []
    with locked_row(*videos.values()):
        for word, video in videos.items():
            if word == "coalesce":
                results[word] = celery_site.publish("coalescing_video", video.pk)
            else:
                results[word] = celery_site.publish("guarded_queue", video.pk, once={"on_conflict": word})
        for word, result in results.items():
            celery_site.wait_until(lambda result=result: f"[{result.id}] is put off" in worker.log(), 120)
            if word in ("queue", "skip", "retry"):
                duplicates.append(celery_site.publish("guarded_queue", videos[word].pk, once={"on_conflict": word}))
        assert {(one.status, one.lock_epoch) for one in Video.objects.all()} == {("uploading", 0)}
    ends = [celery_site.outcome(result, 120) for result in (*results.values(), *duplicates)]
    assert {state for state, _ in ends} == {"SUCCESS"}
    assert {value.get("reason") for _, value in ends} <= {None, "invalid_state", "already_processing"}
    assert Counter(event.key for event in celery_site.events("start")) == {str(one.pk): 1 for one in videos.values()}
    assert {(one.status, one.lock_epoch) for one in Video.objects.all()} == {("ready", 1)}


def test_the_closing_write_waits_for_it(celery_site):
    worker, gate, video = celery_site.worker(), celery_site.gate(), Video.objects.create()
    result = celery_site.publish("guarded_queue", video.pk, until=gate)
    celery_site.started(video.pk)
    with locked_row(video):
        gate.open()
        celery_site.wait_until(lambda: f"Video:{video.pk}: another transaction holds a lock" in worker.log(), 120)
        assert celery_site.lock(f"video:{video.pk}")
    assert celery_site.outcome(result, 120)[1]["status"] == "success"
    video.refresh_from_db()
    assert (video.status, video.lock_epoch) == ("ready", 1)
