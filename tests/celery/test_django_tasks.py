"""``task_lock`` and ``model_lock`` work below Django's own ``@task``, where Django has one."""

from __future__ import annotations

import asyncio
import importlib.util

import pytest

if importlib.util.find_spec("django.tasks") is None:
    pytest.skip("django.tasks is new in Django 6.0", allow_module_level=True)

from django.tasks import TaskResultStatus, task

from django_tasklock import TaskLock, TaskLockError, current_claim, model_lock, task_lock
from django_tasklock.backends.memory import reset
from tests.support.guards import GUARD, MEMORY, elsewhere, states
from tests.testapp.models import Video

pytestmark = [pytest.mark.database, pytest.mark.django_db]


@pytest.fixture(autouse=True)
def _locks_in_memory(settings):
    settings.TASKLOCK = MEMORY
    settings.TASKS = {"default": {"BACKEND": "django.tasks.backends.immediate.ImmediateBackend"}}
    reset()


@task
@task_lock("tasks-report:{day}")
def report(day, pages=3):
    return {"day": day, "held": TaskLock(f"tasks-report:{day}").locked()}


@task
@task_lock("tasks-report:{day}", on_conflict="raise")
def report_or_raise(day):
    return "ran"


@task
@task_lock("tasks-report:{day}", on_conflict="queue")
def report_or_queue(day):
    return "ran"


@task(takes_context=True)
@model_lock(Video, "tasks-video:{video_id}", pk="video_id", guard=GUARD)
def process(context, video_id, fail=False):
    current_claim().update(progress=40)
    if fail:
        raise ValueError("no such codec")
    return {"attempt": context.attempt, "epoch": current_claim().epoch}


@task
@model_lock(Video, "tasks-video:{video_id}", pk="video_id", guard=GUARD)
async def process_async(video_id):
    await asyncio.sleep(0)
    await current_claim().aupdate(progress=40)
    return current_claim().epoch


def outcome(result):
    """Of a task that did not fail, what it returned; else the name of its error."""
    if result.status == TaskResultStatus.FAILED:
        return result.errors[-1].exception_class.__name__
    return result.return_value


class TestTaskLock:
    def test_runs_under_the_lock(self):
        assert outcome(report.enqueue("monday")) == {"day": "monday", "held": True}
        assert outcome(report.enqueue(day="monday")) == {"day": "monday", "held": True}
        assert not report.func.lock.is_locked(day="monday")

    def test_skip(self):
        with TaskLock("tasks-report:monday"):
            result = elsewhere(lambda: report.enqueue("monday"))
        assert result.status == TaskResultStatus.SUCCESSFUL
        assert set(result.return_value) == {"status", "reason", "name", "holder", "held_for", "time_left"}
        assert (result.return_value["status"], result.return_value["reason"]) == ("skipped", "already_processing")

    @pytest.mark.parametrize("busy", [report_or_raise, report_or_queue], ids=["raise", "queue"])
    def test_raise_and_the_words_of_celery_raise(self, busy):
        """There is no message that could be put aside."""
        with TaskLock("tasks-report:monday"):
            assert outcome(elsewhere(lambda: busy.enqueue("monday"))) == "TaskLockAcquireError"
        assert outcome(busy.enqueue("monday")) == "ran"


class TestModelLock:
    def test_a_whole_call(self):
        video = Video.objects.create()
        assert outcome(process.enqueue(video.pk)) == {"attempt": 1, "epoch": 1}
        assert states(video) == ("ready", 40, 1)

    def test_a_failure(self):
        video = Video.objects.create()
        assert outcome(process.enqueue(video.pk, fail=True)) == "ValueError"
        assert states(video) == ("failed", 40, 1)
        assert not process.func.lock.is_locked(video_id=video.pk)

    @pytest.mark.django_db(transaction=True)
    def test_a_coroutine(self):
        video = Video.objects.create()
        assert outcome(process_async.enqueue(video.pk)) == 1
        assert states(video) == ("ready", 40, 1)


def test_a_lock_is_not_put_around_a_task():
    with pytest.raises(TaskLockError, match="already is a task: put the lock decorator below the task decorator"):
        task_lock("a")(report)
