"""The row of a message is locked by another transaction: ``on_conflict`` decides, and no work is dropped as done."""

from __future__ import annotations

import pytest

from tests.support.guards import locked_row
from tests.testapp.models import Video

pytest_plugins = ["tests.support.celery_site.fixtures"]
pytestmark = pytest.mark.database
SITE_TASKS = ["tests.support.celery_site.once_tasks", "tests.support.celery_site.queue_tasks"]


def test_each_word(celery_site):
    celery_site.worker(concurrency=5)  # each waits for as long as its database lets it
    videos = {word: Video.objects.create() for word in ("queue", "coalesce", "retry", "reject", "skip")}
    results = {}
    with locked_row(*videos.values()):
        for word, video in videos.items():
            if word == "coalesce":
                results[word] = celery_site.publish("coalescing_video", video.pk)
            else:
                results[word] = celery_site.publish("guarded_queue", video.pk, once={"on_conflict": word})
        assert celery_site.outcome(results.pop("skip"), 120)[1]["reason"] == "row_locked"
        assert celery_site.outcome(results.pop("reject"), 120)[0] == "REVOKED"
        for result in results.values():
            celery_site.wait_until(lambda result=result: celery_site.result(result).state == "RETRY", 120)
        assert {(one.status, one.lock_epoch) for one in Video.objects.all()} == {("uploading", 0)}
    for word, result in results.items():
        assert celery_site.outcome(result, 120)[1]["status"] == "success"
        videos[word].refresh_from_db()
        assert (videos[word].status, videos[word].lock_epoch) == ("ready", 1)
