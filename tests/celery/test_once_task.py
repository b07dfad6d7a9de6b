"""A ``OnceTask`` runs one message at a time per key, however it is called, and refuses options that cannot work.

They are refused when the task is bound, or when it is called: before anything is published or stored.
"""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from datetime import timedelta
from functools import wraps
from pathlib import Path
from typing import Any

import pytest
from django.db import transaction

from django_tasklock import TaskLock, TaskLockAcquireError, TaskLockError, current_lock, task_lock
from django_tasklock.backends import get_backend
from django_tasklock.celery import OnceTask
from django_tasklock.exceptions import GuardRejected
from tests.support.guards import GUARD, MEMORY, elsewhere, states
from tests.testapp.models import Video

pytest_plugins = ["tests.support.once_fixtures"]
ROOT = Path(__file__).parents[2]


def plain(x: Any = None) -> str:
    return "ran"


BAD = [
    (dict(on_conflict="later"), "on_conflict must be one of 'skip', 'raise', 'wait'"),
    (dict(timeout=timedelta(0)), "timeout must be a positive number of seconds"),
    (dict(timeout=5, lease=6), "is longer than its timeout"),
    (dict(blocking_timeout=5), "blocking_timeout goes with on_conflict='wait'"),
    (dict(on_conflict="queue", queue_limit=0), "queue_limit must be a number of messages"),
    (dict(on_conflict="coalesce", queue_limit=2), "queue_limit goes with on_conflict='queue'"),
    (dict(on_unavailable="die"), "on_unavailable must be 'run', 'raise' or 'skip'"),
    (dict(unique=True), "unique must be None, 'until_start' or 'until_finish'"),
    (dict(unique="until_start", unique_for=0), "unique_for must be a positive"),
    (dict(unique_for=5), "unique_for goes with unique"),
    (dict(on_duplicate="ignore"), "on_duplicate must be 'return' or 'raise'"),
    (dict(key=42), "a lock name must be str, not int"),
]
BAD_OF_TASK = [
    (dict(key="video:{nope}"), "names 'nope', which is no argument of it; known: x"),
    (dict(key="video:{self}", bind=True), "names 'self', which is no argument of it; known: x"),
    (dict(takeovers=-1), "takeovers must be a number, 0 or more"),
    (dict(guard=GUARD), "guard and model go together"),
    (dict(guard=GUARD, model=Video, pk="video_id"), "pk='video_id' is no argument of task once."),
]
BAD_OF_CALL = [
    (dict(on_conflit="wait"), "unknown option on_conflit (did you mean 'on_conflict'?); known: key,"),
    (dict(guard=GUARD, takeovers=3), "unknown option guard, takeovers"),
]


class TestBadOptions:
    @pytest.mark.parametrize(("options", "message"), [*BAD, *BAD_OF_TASK])
    def test_when_the_task_is_bound(self, app, options, message):
        """Gold standard 8.37: units and zeros among them."""
        body = (lambda self, x: None) if options.get("bind") else (lambda x: None)
        with pytest.raises(TaskLockError) as caught:
            app.task(body, **options)
        assert message in str(caught.value)

    @pytest.mark.parametrize(("options", "message"), [BAD[0], BAD[3], *BAD_OF_CALL])
    def test_of_one_call(self, app, options, message):
        task = app.task(plain)
        for call in (lambda: task.apply_async((1,), once=options), lambda: task.apply((1,), once=options)):
            with pytest.raises(TaskLockError) as caught:
                call()
            assert message in str(caught.value)
        assert app.all() == []
        assert get_backend().records() == []

    def test_once_is_a_dict(self, app):
        with pytest.raises(TaskLockError, match="once must be a dict of options"):
            app.task(plain).apply_async(once="wait")

    def test_a_call_of_its_own_would_run_the_body_without_the_lock(self, app):
        """F45: as Celery's user guide has it; there was no lock at all, and no word."""
        own = type("Own", (OnceTask,), {"abstract": True, "__call__": lambda self, *args: self.run(*args)})
        with pytest.raises(TaskLockError, match=r"a __call__ of its own.*before_start\(\)"):
            app.task(plain, base=own, key="a")

    def test_a_call_around_ours_is_no_such(self, app):
        """Sentry patches the task when it is first run; another task is derived from that one later."""
        ours = OnceTask.__call__
        traced = wraps(ours)(lambda *args, **kwargs: ours(*args, **kwargs))
        patched = type("Patched", (OnceTask,), {"abstract": True, "__call__": traced})
        app.task(lambda: current_lock().name, base=patched, key="a").delay()
        assert app.run() == ("SUCCESS", "a")


def test_as_the_class_of_all_tasks_before_django_is_set_up():
    """A project's ``celery.py`` imports us before the apps are ready. Celery's own tasks get the app's ``task_cls``,
    too, and no lock: ``chord_unlock`` would meet itself, ``map`` could have no key."""
    code = """
        from celery import Celery
        from django_tasklock.celery import OnceTask
        from django.apps import apps
        assert not apps.ready and not apps.apps_ready

        app = Celery("proj", task_cls=OnceTask, broker="memory://", backend="cache+memory://")

        @app.task(key="video:{video_id}")
        def process(video_id):
            from django_tasklock import current_lock
            return current_lock().name

        import django
        django.setup()
        assert isinstance(process, OnceTask)
        print(process.apply((42,)).get())
        process.delay(1)

        from django_tasklock.locks.lock import TaskLock
        def never(*args, **kwargs):
            raise AssertionError("a lock")
        TaskLock.acquire = never
        process.map([object()])
        app.tasks["celery.backend_cleanup"].apply().get()
        app.tasks["celery.backend_cleanup"].apply_async(countdown=5)
        """
    environment = {**os.environ, "DJANGO_SETTINGS_MODULE": "tests.settings", "PYTHONWARNINGS": "error"}
    command = [sys.executable, "-c", textwrap.dedent(code)]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False, timeout=60)
    assert (done.stdout, done.returncode) == ("video:42\n", 0), done.stderr


@pytest.mark.database
@pytest.mark.django_db(transaction=True)
def test_on_commit(app):
    task = app.task(plain, key="v:{x}")
    with transaction.atomic():
        task.delay_on_commit(1)
        task.apply_async_on_commit((2,), {}, countdown=5, once={"on_conflict": "skip"})
        task.once(key="a").delay_on_commit(3)
        task.once(key="b").apply_async_on_commit((4,), countdown=5)
        assert app.all() == []
    messages = app.all()
    assert [message.key for message in messages] == ["v:1", "v:2", "a", "b"]
    assert [bool(message.headers["eta"]) for message in messages] == [False, True, False, True]
    assert messages[1].ours["once"] == {"on_conflict": "skip"}


class TestRun:
    """From a message, as a worker does."""

    def test_under_its_lock(self, app):
        def body(self, x):
            lock = current_lock()
            assert TaskLock(lock.name).locked()
            return lock.name, lock.time_left > 100, self.request.id

        result = app.task(body, bind=True, key="v:{x}", timeout=120, lease=5).delay(1)
        assert app.run() == ("SUCCESS", ("v:1", True, result.id))
        assert get_backend().records() == []

    @pytest.mark.parametrize(
        ("on_conflict", "state"),
        [("skip", "SUCCESS"), ("raise", "FAILURE"), ("reject", "IGNORED"), ("wait", "FAILURE"), ("retry", "RETRY")],
    )
    def test_busy(self, app, on_conflict, state):
        more = {"blocking_timeout": 0.05} if on_conflict == "wait" else {}
        task = app.task(lambda x: app.body(x), key="v:{x}", on_conflict=on_conflict, **more)
        task.delay(x=1)
        with TaskLock("v:1"):
            outcome = elsewhere(app.run)
        assert outcome[0] == state
        assert app.calls == []
        if state == "FAILURE":
            assert isinstance(outcome[1], TaskLockAcquireError)
        if on_conflict == "skip":
            assert (outcome[1]["status"], outcome[1]["reason"]) == ("skipped", "already_processing")
            assert outcome[1]["name"] == "v:1"
        messages = app.all()
        if on_conflict == "retry":
            (again,) = messages
            assert (again.kwargs, again.key, again.headers["retries"]) == ({"x": 1}, "v:1", 0)
            assert app.run(again) == ("SUCCESS", "ran")
        else:
            assert messages == []

    def test_a_caller_that_wants_a_result_of_a_task_that_stores_none(self, app):
        """It does not wait for ever if its message is rejected; nor if it is sent again, where Celery heeds it."""
        task = app.task(key="wanted", ignore_result=True)
        results = [task.once(on_conflict=word).apply_async(ignore_result=False) for word in ("reject", "retry")]
        with TaskLock("wanted"):
            elsewhere(app.run), elsewhere(app.run)
        assert results[0].state == "REVOKED"
        assert app.take().headers["ignore_result"] is False

    def test_the_setting_decides_where_the_task_does_not(self, app, settings):
        settings.TASKLOCK = {**MEMORY, "ON_CONFLICT": "retry"}
        assert app.task(key="a").on_conflict == "reject"
        app.task(key="a", on_conflict=None).delay()
        app.task(task_lock("a")(plain), base=app.app.Task).delay()
        messages = app.all()
        with TaskLock("a"):
            assert [elsewhere(lambda message=message: app.run(message))[0] for message in messages] == ["RETRY"] * 2

    @pytest.mark.database
    @pytest.mark.django_db
    def test_a_guarded_row(self, app):
        def body(self, video_id, fail=False):
            if fail:
                raise ValueError("no such codec")
            return Video.objects.get(pk=video_id).status

        options = {"guard": GUARD, "model": "testapp.Video", "pk": "video_id", "on_conflict": "skip"}
        task = app.task(body, bind=True, key="video:{video_id}", **options)
        good, bad = Video.objects.create(), Video.objects.create()
        task.delay(good.pk)
        assert app.run() == ("SUCCESS", "processing")
        assert states(good)[0] == "ready"
        task.delay(video_id=bad.pk, fail=True)
        assert app.run()[0] == "FAILURE"
        assert states(bad)[0] == "failed"
        task.delay(good.pk)
        assert app.run()[1]["reason"] == "invalid_state"
        task.once(on_conflict="raise").delay(good.pk)
        state, error = app.run()
        assert (state, type(error)) == ("FAILURE", GuardRejected)


class TestDirectAndEager:
    @pytest.mark.parametrize("on_conflict", ["skip", "raise", "reject", "queue"])
    def test_a_direct_call_takes_the_lock_or_does_what_it_can(self, app, on_conflict):
        """There is no message to put aside."""
        task = app.task(lambda: current_lock().name, key="a", on_conflict=on_conflict)
        assert task() == "a"
        with TaskLock("a"):
            if on_conflict == "skip":
                assert elsewhere(task)["reason"] == "already_processing"
            else:
                with pytest.raises(TaskLockAcquireError):
                    elsewhere(task)

    @pytest.mark.parametrize(
        ("on_conflict", "state"), [("skip", "SUCCESS"), ("raise", "FAILURE"), ("reject", "REJECTED")]
    )
    def test_eager(self, app, on_conflict, state):
        app.app.conf.task_always_eager = True
        task = app.task(lambda x: current_lock().name, key="v:{x}", on_conflict=on_conflict, unique="until_finish")
        assert task.delay(1).get() == "v:1"
        assert task.once(key="a").delay(1).get() == "a"
        assert task.apply((1,), once={"key": "b"}).get() == "b"
        with TaskLock("v:1"):
            assert elsewhere(lambda: task.delay(1).state) == state
        assert get_backend().records() == []
