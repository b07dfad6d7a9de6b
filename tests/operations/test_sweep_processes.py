"""Sweeps beside real workers and real sweeps: killed at every step, several at once, and tasks published again."""

from __future__ import annotations

import signal
import subprocess
import sys
from typing import Any

import pytest

from django_tasklock.backends import get_backend
from django_tasklock.celery import republish as requeue
from django_tasklock.operations import sweep
from django_tasklock.operations.sweep import restoring
from tests.support import sweeper
from tests.support.celery_site import sweep_tasks
from tests.support.celery_site.courier import Courier
from tests.support.sweeping import claimed, claimed_by_dead, dead_holder, found, hold, state, swept, tally_of
from tests.testapp.models import PlainVideo, Track, Video

pytest_plugins = ["tests.support.celery_site.fixtures", "tests.support.sweep_fixtures"]
SITE_TASKS = ["tests.support.celery_site.sweep_tasks", "tests.support.celery_site.once_tasks"]

pytestmark = pytest.mark.filterwarnings("ignore:Call to deprecated setex:DeprecationWarning")  # by Celery's results


def ended(process: subprocess.Popen[str]) -> tuple[int, str]:
    said, _ = process.communicate(timeout=60)
    return process.returncode, said


# Published again


@pytest.mark.database
@pytest.mark.parametrize("left", ["dead", "abandoned"])
def test_the_task_of_a_row_that_is_put_back_is_published_again_and_runs(
    celery_site, only, left: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    only("swept_video")
    monkeypatch.setattr(requeue, "SETTLING", 0.5)
    row = claimed_by_dead("swept")[0] if left == "dead" else claimed()
    report = swept(requeue=True)
    assert tally_of(report) == {left: (1, 1, 0, 0)}
    assert report.published == 1
    assert state(row) == ("uploading", "", 2)
    celery_site.worker()
    result = celery_site.app.AsyncResult(found(report, left).published)
    assert celery_site.outcome(result)[0] == "SUCCESS"  # of a second one, if the machine stalled before the commit
    assert state(row) == ("ready", "", 3)
    assert tally_of(swept(requeue=True)) == {}


def test_a_row_that_is_known_by_its_public_id_is_claimed_put_back_and_published_again_by_it(
    celery_site, only, monkeypatch: pytest.MonkeyPatch
) -> None:
    only("swept_track")
    monkeypatch.setattr(requeue, "SETTLING", 0.5)
    fresh, left = Track.objects.create(), claimed(Track)
    task = celery_site.app.tasks[sweep_tasks.swept_track.name]
    report = swept(requeue=True)
    assert tally_of(report) == {"abandoned": (1, 1, 0, 0)}
    celery_site.worker()
    again = celery_site.app.AsyncResult(found(report, "abandoned").published)
    for result in (task.delay(str(fresh.uid)), again):
        assert celery_site.outcome(result)[0] == "SUCCESS"
    assert state(fresh) == ("ready", "", 1)
    assert state(left) == ("ready", "", 3)
    wrong = celery_site.outcome(task.delay(fresh.uid.hex))
    assert wrong[0] == "FAILURE"
    assert "TaskLockError" in repr(wrong)


def test_a_row_of_a_body_that_was_interrupted_is_found_if_nothing_runs_it_again(celery_site, only) -> None:
    """It was acknowledged early, and the worker shuts down."""
    only("swept_video")
    row, worker = Video.objects.create(), celery_site.worker()
    celery_site.publish("swept_video", row.pk, until=celery_site.gate())
    celery_site.started(row.pk)
    celery_site.accepted(worker)
    worker.quit()
    worker.ended()
    assert state(row)[0] == "uploading"
    report = swept(requeue=True)
    assert (tally_of(report), report.published) == ({"abandoned": (1, 1, 0, 0)}, 1)


@pytest.mark.database
def test_a_row_of_which_all_workers_die_is_failed_and_not_published_again(
    celery_site, only, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each sweep publishes another message: it is the row whose starts are counted."""
    only("swept_deadly")
    monkeypatch.setattr(requeue, "SETTLING", 0.5)
    row = Video.objects.create()
    result = celery_site.publish("swept_deadly", row.pk)
    for starts in (1, 2):  # the first, and one more
        worker = celery_site.start()
        celery_site.started(row.pk, starts)
        celery_site.wait_until(lambda worker=worker: not worker.members())
        assert len(celery_site.events("start", row.pk)) == starts
        result = found(swept(requeue=True), "dead").published
    worker = celery_site.worker()
    assert "CrashLoop" in repr(celery_site.outcome(result))
    assert "2 workers died of it" in worker.log()
    assert state(row)[:2] == ("failed", "")
    assert tally_of(swept(requeue=True)) == {}
    assert len(celery_site.events("start", row.pk)) == 2


def test_a_task_that_needs_more_than_the_row_is_not_published(celery_site, only) -> None:
    only("swept_two")
    row = claimed()
    dry = swept(requeue=True, dry_run=True)
    report = swept(requeue=True)
    for one in (dry, report):
        assert "also needs quality" in found(one, "abandoned").unpublished
    assert tally_of(report) == {"abandoned": (1, 1, 0, 0)}
    assert state(row)[0] == "uploading"
    assert celery_site.waiting() == 0


def test_of_two_tasks_the_one_that_the_dead_holder_ran_is_published(celery_site, only) -> None:
    only("swept_video", "swept_two")
    row = claimed()
    name = "tests.support.celery_site.sweep_tasks.swept_video"
    token = hold("of the caller", dead_holder(task=name), row=f"testapp.video:{row.pk}")
    Video.objects.filter(pk=row.pk).update(lock_token=token)
    assert swept(requeue=True).published == 1
    headers, _ = Courier(celery_site).message()
    assert headers["task"] == name
    assert headers["eta"] is not None, "it is not to be run before the commit"


def test_a_broker_that_is_down_leaves_the_row_as_it_is(celery_site, only, monkeypatch: pytest.MonkeyPatch) -> None:
    only("swept_video")
    row = claimed()

    def refuses(self: Any, *what: Any) -> Any:
        raise ConnectionError("no broker")

    monkeypatch.setattr(requeue.Publisher, "publish", refuses)
    report = swept(requeue=True)
    assert tally_of(report) == {"abandoned": (1, 0, 0, 1)}
    assert "no broker" in found(report, "abandoned").unpublished
    assert state(row)[::2] == ("processing", 1)


# Live ones


def test_a_task_that_began_while_the_store_was_down_is_not_touched(celery_site, only) -> None:
    """It has claimed its row without a lock; it takes that as soon as the store answers, which is before the second
    look."""
    only("swept_video")
    row = Video.objects.create()
    gate = celery_site.gate()
    celery_site.worker()
    celery_site.lock_store.kill()
    result = celery_site.publish("tests.support.celery_site.sweep_tasks.swept_video", video_id=row.pk, until=gate)
    celery_site.started(row.pk)
    celery_site.lock_store.start()
    report = sweep(requeue=True)
    assert report.swept == 0
    gate.open()
    assert celery_site.outcome(result) == ("SUCCESS", {"status": "success", "key": row.pk})
    assert state(row) == ("ready", "", 1)


def test_a_stopped_holder_is_not_a_dead_one(celery_site, only) -> None:
    code = "from django_tasklock.locks import holder; print(holder.holder_json(), flush=True); input()"
    with subprocess.Popen([sys.executable, "-c", code], stdin=-1, stdout=-1, text=True) as process:
        assert process.stdout is not None
        holder = process.stdout.readline()
        hold("stopped", holder)
        process.send_signal(signal.SIGSTOP)
        assert tally_of(swept()) == {}
        process.send_signal(signal.SIGKILL)
        process.wait()
        assert tally_of(swept()) == {"dead": (1, 1, 0, 0)}


# Killed sweeps


@pytest.mark.database
@pytest.mark.parametrize("step", [step for step in sweeper.STEPS if step != "holding"])
@pytest.mark.parametrize("again", ["requeue", "plain"])
def test_a_killed_sweep_is_completed_by_the_next_one(celery_site, only, step: str, again: str) -> None:
    """gold standard 8.16. Whatever it had done, the next sweep does the rest, and no row is left without a message."""
    if again == "plain" and "publishing" in step:
        return  # there is no such step
    only("swept_video")
    requeued = again == "requeue"
    (dead, _), row = claimed_by_dead("swept"), claimed()
    code, _ = ended(only.start(options={"requeue": requeued}, kill=step))
    assert code == -signal.SIGKILL
    if requeued and state(dead)[0] == "uploading":
        assert get_backend().get(f"swept:{dead.pk}") is None, "whoever runs its message is to find the lock free"
    report = swept(requeue=requeued)
    assert tally_of(swept(requeue=requeued)) == {}, f"after {tally_of(report)} there is nothing left"
    for one in (dead, row):
        assert state(one) == ("uploading", "", 2)
        assert get_backend().get(f"swept:{one.pk}") is None
    if requeued:
        sent = {message_of(celery_site) for _ in range(celery_site.waiting())}
        assert sent == {dead.pk, row.pk}, "each was published, and by whoever committed"


def message_of(site: Any) -> int:
    with site.app.connection_for_read() as connection, connection.SimpleQueue(site.queue()) as queue:
        message = queue.get(timeout=5)
        message.ack()
        return int(message.payload[1]["video_id"])


def test_a_sweep_that_is_killed_while_it_holds_a_lock_frees_it_in_seconds(celery_site, only) -> None:
    """Of a row without a token the lock is held for the moment of the UPDATE."""
    only("swept_plain")
    row = claimed(PlainVideo)
    code, _ = ended(only.start(kill="holding"))
    assert code == -signal.SIGKILL
    record = get_backend().get(f"plain:{row.pk}")
    assert record is not None
    assert record.ttl is not None
    assert record.ttl <= restoring.BRIEF_LEASE
    assert tally_of(swept()) == {"dead": (1, 1, 0, 0), "abandoned": (1, 1, 0, 0)}
    assert state(row) == ("uploading",)
