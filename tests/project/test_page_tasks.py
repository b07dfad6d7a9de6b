"""The five recipes of docs/tasks.md, run by a real worker."""

from __future__ import annotations

from typing import Any

from django_tasklock.celery import count_parked
from tests.support.celery_site import page_tasks
from tests.support.celery_site.journal import most_at_once
from tests.support.celery_site.page_tasks import DEFINED, USES
from tests.testapp.models import Video

pytest_plugins = ["tests.support.celery_site.fixtures"]
SITE_TASKS = ["tests.support.celery_site.page_tasks"]


def use(number: int) -> None:
    """Run what the recipe does, beside defining tasks."""
    exec(USES[number - 1], DEFINED)


def started(site: Any, task: str) -> list[dict[str, Any]]:
    """The arguments of every run that began."""
    return [event.more["arguments"] for event in site.events("start", key=task)]


def test_1_the_second_is_rejected(celery_site):
    worker = celery_site.worker(concurrency=2)
    use(1)
    celery_site.started("send_report")
    celery_site.wait_until(lambda: "reject: lock" in worker.log(), 20)
    page_tasks.gate().touch()
    celery_site.wait_until(lambda: celery_site.events("end", key="send_report"), 20)
    assert started(celery_site, "send_report") == [{"day": "2026-01-01", "recipients": "all"}]
    lock = DEFINED["send_report"].lock
    celery_site.wait_until(lambda: not lock.is_locked(day="2026-01-01"), 5)


def test_2_the_caller_waits_or_tries_again(celery_site):
    worker = celery_site.worker(concurrency=4)
    DEFINED["send_report"].delay("2026-01-01")
    DEFINED["send_report"].once(key="mail-server").delay("2026-01-03")
    celery_site.started("send_report", number=2)
    use(2)
    celery_site.wait_until(lambda: "retry: lock 'mail-server'" in worker.log(), 20)
    celery_site.wait_until(lambda: (found := DEFINED["send_report"].lock.info(day="2026-01-01")) and found.waiting, 20)
    assert len(started(celery_site, "send_report")) == 2
    page_tasks.gate().touch()
    celery_site.wait_until(lambda: len(started(celery_site, "send_report")) == 3, 20)
    assert [run["day"] for run in started(celery_site, "send_report")].count("2026-01-01") == 2


def test_3_all_run_in_order(celery_site):
    celery_site.worker(concurrency=4)
    use(3)
    celery_site.started("book")
    celery_site.wait_until(lambda: count_parked("account:7") == 2, 20)
    page_tasks.gate().touch()
    celery_site.wait_until(lambda: len(celery_site.events("end", key="book")) == 3, 30)
    assert [run["amount"] for run in started(celery_site, "book")] == [10, 20, 30]
    assert most_at_once(celery_site.events(key="book")) == 1
    celery_site.wait_until(lambda: count_parked() == 0, 10)


def test_4_the_newest_runs_once_more(celery_site):
    celery_site.worker(concurrency=4)
    rebuild = DEFINED["rebuild_index"]
    rebuild.delay("shop", 0)
    celery_site.started("rebuild_index")
    results = [rebuild.delay("shop", revision) for revision in range(1, 21)]
    celery_site.wait_until(lambda: sum(result.ready() for result in results) == 19, 30)
    page_tasks.gate().touch()
    celery_site.outcome(results[-1])
    assert [run["revision"] for run in started(celery_site, "rebuild_index")] == [0, 20]
    assert {result.result["reason"] for result in results[:-1]} == {"coalesced"}


def test_5_once_from_the_click_to_the_end(celery_site):
    use(5)
    video = Video.objects.get()
    first = DEFINED["process_once"].delay(video.pk)
    assert DEFINED["process_once"].delay(video_id=video.pk).id == first.id
    assert celery_site.waiting() == 1
    celery_site.worker(concurrency=2)
    celery_site.started("process_once")
    assert DEFINED["process_once"].delay(video.pk).id == first.id
    video.refresh_from_db()
    assert video.status == "processing"
    page_tasks.gate().touch()
    assert celery_site.outcome(first)[0] == "SUCCESS"
    video.refresh_from_db()
    assert video.status == "ready"
    celery_site.wait_until(lambda: DEFINED["process_once"].delay(video.pk).id != first.id, 10)
    assert len(started(celery_site, "process_once")) == 1
