"""gold standard 8.14: every kind of lock, in every phase of its task, while sweeps run: live ones are never touched.

And the other way round: when the worker is killed, one sweep frees all that it held, but for what is kept for messages.
"""

from __future__ import annotations

from typing import Any

import pytest

from django_tasklock import list_all_task_locks
from django_tasklock.celery import count_parked, parked_messages
from django_tasklock.celery.queue import promoter as promotion
from tests.support.sweeping import swept, tally_of
from tests.testapp.models import Video

pytest_plugins = ["tests.support.celery_site.fixtures", "tests.support.sweep_fixtures"]
SITE_TASKS = ["tests.support.celery_site.sweep_tasks", "tests.support.celery_site.once_tasks"]

pytestmark = pytest.mark.filterwarnings("ignore:Call to deprecated setex:DeprecationWarning")  # by Celery's results

ONCE = "tests.support.celery_site.once_tasks."
SWEPT = "tests.support.celery_site.sweep_tasks."
RUNNING = ("a", "plain", "once", "unique", "line")


def publish_all(site: Any, gate: str) -> tuple[Any, dict[str, Any]]:
    """One task of each kind, that waits for the gate; the row, and the results."""
    row = Video.objects.create()
    return row, {
        "task_lock": site.publish("locked_hold", "a", until=gate),
        "model_lock": site.publish("guarded_hold", video_id=row.pk, until=gate),
        "plain functions": site.publish(SWEPT + "plain_hold", "plain", until=gate),
        "OnceTask": site.publish(ONCE + "once_hold", "once", until=gate),
        "unique": site.publish(ONCE + "once_hold", "unique", until=gate, once={"unique": "until_finish"}),
        "retry": site.publish(SWEPT + "retrying_hold", "again", until=gate),
        "queue": site.publish(ONCE + "queued_hold", "line", until=gate),
    }


def locks() -> dict[str, str]:
    """Name and fingerprint of every lock that is held."""
    return {info.name: info.fingerprint for info in list_all_task_locks()}


def untouched(phase: str) -> dict[str, str]:
    """Sweep again and again: nothing is found, and every lock has the holder that it had."""
    before = locks()
    for _ in range(3):
        report = swept(requeue=True, pause=0.02)
        assert tally_of(report) == {}, f"{phase}: {report.findings}"
    after = locks()
    assert after == before, phase
    return after


def test_sweeps_touch_no_live_lock(celery_site, only) -> None:
    only("tasks.guarded_hold")
    celery_site.configure(lease=5)
    gate = celery_site.gate()
    row, results = publish_all(celery_site, gate)
    held = untouched("published")
    assert len(held) == 1, "that of the unique message"
    celery_site.worker(concurrency=8)
    for key in (*RUNNING, row.pk):
        celery_site.started(key)
    results["parked"] = celery_site.publish(ONCE + "queued_hold", "line", until=gate)
    celery_site.wait_until(lambda: count_parked("hold:line") and results["retry"].state == "RETRY")
    held = untouched("running, parked, and one that waits for its retry")
    assert {"plain:plain", "hold:line", f"video:{row.pk}"} <= held.keys()
    celery_site.started("again")
    held = untouched("all running")
    assert len(held) == 8
    gate.open()
    for kind, result in results.items():
        assert celery_site.outcome(result)[0] == "SUCCESS", kind
    celery_site.wait_until(lambda: not locks())
    assert tally_of(swept(requeue=True)) == {}
    row.refresh_from_db()
    assert (row.status, row.lock_epoch) == ("ready", 1)


def test_one_sweep_frees_what_a_killed_worker_held(celery_site, only, monkeypatch: pytest.MonkeyPatch) -> None:
    only("tasks.guarded_hold")
    monkeypatch.setattr(promotion, "PREDECESSOR_PATIENCE", 0.0)  # the line waits no longer for the message that died
    row, results = publish_all(celery_site, celery_site.gate())
    worker = celery_site.worker(concurrency=8)
    for key in (*RUNNING, row.pk, "again"):
        celery_site.started(key)
    celery_site.publish(ONCE + "queued_hold", "line")
    celery_site.wait_until(lambda: parked_messages("hold:line", state="parked"))  # its result says so before
    worker.kill()
    report = swept(pause=0.02)
    assert tally_of(report) == {"dead": (8, 8, 0, 0)}  # the unique lock was its process's, too, while the body ran
    assert locks() == {}
    row.refresh_from_db()
    assert (row.status, row.lock_token, row.lock_epoch) == ("processing", "", 2)
    assert tally_of(swept()) == {}
    assert results
