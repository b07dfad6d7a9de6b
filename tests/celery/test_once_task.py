"""``OnceTask`` itself: its options, which are checked when it is bound, early imports, direct and eager calls."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from celery.app import builtins
from celery.contrib.django.task import DjangoTask
from celery.exceptions import Reject
from django.db import transaction

from django_tasklock import TaskLock, TaskLockAcquireError, TaskLockError, current_lock
from django_tasklock.backends import get_backend
from django_tasklock.backends.memory import reset
from django_tasklock.celery import OnceTask
from django_tasklock.exceptions import GuardRejected
from tests.support.guards import GUARD, MEMORY, elsewhere, states
from tests.support.once_app import OnceApp, once_app
from tests.testapp.models import Video

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def _locks_in_memory(settings: Any) -> None:
    settings.TASKLOCK = MEMORY
    reset()


@pytest.fixture
def app() -> Iterator[OnceApp]:
    with once_app() as made:
        yield made


def plain(x: Any = None) -> str:
    return "ran"


BAD = {
    "on_conflict": (dict(on_conflict="later"), "on_conflict must be one of 'skip', 'raise', 'wait'"),
    "timeout 0": (dict(timeout=0), "timeout must be a positive number of seconds"),
    "timeout -1": (dict(timeout=-1), "timeout must be a positive number of seconds"),
    "timeout text": (dict(timeout="5"), "timeout must be seconds"),
    "timeout bool": (dict(timeout=True), "timeout must be seconds"),
    "timeout nan": (dict(timeout=float("nan")), "timeout must be a positive number of seconds"),
    "timedelta 0": (dict(timeout=timedelta(0)), "timeout must be a positive number of seconds"),
    "lease 0": (dict(lease=0), "lease must be a positive number of seconds"),
    "lease text": (dict(lease="5"), "lease must be seconds"),
    "lease too long": (dict(timeout=5, lease=6), "is longer than its timeout"),
    "blocking_timeout alone": (dict(blocking_timeout=5), "blocking_timeout goes with on_conflict='wait'"),
    "blocking_timeout 0": (dict(on_conflict="wait", blocking_timeout=0), "blocking_timeout must be a positive"),
    "queue_limit alone": (dict(queue_limit=5), "queue_limit goes with on_conflict='queue'"),
    "queue_limit 0": (dict(on_conflict="queue", queue_limit=0), "queue_limit must be a number of messages"),
    "queue_limit bool": (dict(on_conflict="queue", queue_limit=True), "queue_limit must be a number of messages"),
    "queue_limit coalesce": (dict(on_conflict="coalesce", queue_limit=2), "queue_limit goes with on_conflict='queue'"),
    "on_unavailable": (dict(on_unavailable="die"), "on_unavailable must be 'run', 'raise' or 'skip'"),
    "unique": (dict(unique="always"), "unique must be None, 'until_start' or 'until_finish'"),
    "unique bool": (dict(unique=True), "unique must be None, 'until_start' or 'until_finish'"),
    "unique_for 0": (dict(unique="until_start", unique_for=0), "unique_for must be a positive"),
    "unique_for text": (dict(unique="until_start", unique_for="1"), "unique_for must be seconds"),
    "unique_for alone": (dict(unique_for=5), "unique_for goes with unique"),
    "key number": (dict(key=42), "a lock name must be str, not int"),
    "key empty": (dict(key=""), "a lock name must not be empty"),
    "key long": (dict(key="k" * 201), "a lock name may have 200 characters"),
    "key newline": (dict(key="a\nb"), "a lock name must be printable"),
}
BAD_OF_TASK = {
    "key field": (dict(key="video:{nope}"), "names 'nope', which is no argument of it; known: x"),
    "key self": (dict(key="video:{self}", bind=True), "names 'self', which is no argument of it; known: x"),
    "key brace": (dict(key="video:{x"), "cannot be read"),
    "key from the end": (dict(key="a:{x[-1]}"), "counts from the end"),
    "key fields": (dict(key="{x}{x}"), "two fields side by side"),
    "takeovers -1": (dict(takeovers=-1), "takeovers must be a number, 0 or more"),
    "takeovers text": (dict(takeovers="3"), "takeovers must be a number, 0 or more"),
    "takeovers bool": (dict(takeovers=True), "takeovers must be a number, 0 or more"),
    "guard alone": (dict(guard=GUARD), "guard and model go together"),
    "model alone": (dict(model=Video), "guard and model go together"),
    "pk": (dict(guard=GUARD, model=Video, pk="video_id"), "pk='video_id' is no argument of task once."),
}


class TestBadOptions:
    @pytest.mark.parametrize(("options", "message"), [*BAD.values(), *BAD_OF_TASK.values()], ids=[*BAD, *BAD_OF_TASK])
    def test_when_the_task_is_bound(self, app, options, message):
        """Gold standard 8.37: units and zeros among them."""
        body = (lambda self, x: None) if options.get("bind") else (lambda x: None)
        with pytest.raises(TaskLockError) as caught:
            app.task(body, **options)
        assert message in str(caught.value)

    @pytest.mark.parametrize(("options", "message"), BAD.values(), ids=BAD)
    @pytest.mark.parametrize("way", ["once", "apply_async", "apply"])
    def test_of_one_call(self, app, options, message, way):
        """Refused before anything is published or stored."""
        task = app.task(plain)
        calls = {
            "once": lambda: task.once(**options),
            "apply_async": lambda: task.apply_async((1,), once=options),
            "apply": lambda: task.apply((1,), once=options),
        }
        with pytest.raises(TaskLockError) as caught:
            calls[way]()
        assert message in str(caught.value)
        assert app.all() == []
        assert get_backend().records() == []

    @pytest.mark.parametrize("way", ["once", "apply_async", "apply"])
    def test_unknown_ones_name_the_known(self, app, way):
        task = app.task(plain)
        options = {"on_conflit": "wait"}
        with pytest.raises(TaskLockError) as caught:
            if way == "once":
                task.once(**options)
            else:
                getattr(task, way)((1,), once=options)
        said = str(caught.value)
        assert "once(): unknown option on_conflit (did you mean 'on_conflict'?); known: key, timeout, lease" in said
        assert app.all() == []

    def test_options_of_the_task_alone_are_not_of_a_call(self, app):
        with pytest.raises(TaskLockError, match="unknown option guard, takeovers"):
            app.task(plain).once(guard=GUARD, takeovers=3)

    @pytest.mark.parametrize("once", ["wait", 5, ["key"], [("key", "a")]])
    def test_once_is_a_dict(self, app, once):
        with pytest.raises(TaskLockError, match="once must be a dict of options"):
            app.task(plain).apply_async(once=once)
        assert app.all() == []

    def test_of_a_class_whose_body_is_inherited(self, app):
        class Base(OnceTask):
            name = "once.base"

            def run(self, x):
                return x

        class Bad(Base):
            name = "once.bad"
            on_conflict = "later"  # type: ignore[assignment]

        app.app.register_task(Base())
        with pytest.raises(TaskLockError, match="^task once.bad: on_conflict must be one of"):
            app.app.register_task(Bad())

    def test_a_base_without_a_body_is_not_checked(self, app):
        """It may be half of what makes sense together."""

        class Half(OnceTask):
            abstract = True
            queue_limit = 5

        task = app.task(plain, base=Half, on_conflict="queue")
        assert (task.queue_limit, task.on_conflict) == (5, "queue")

    def test_of_a_shared_task(self):
        """It is bound when the app is finalized, in a process of its own: a bad one is shared with every app."""
        said = python(
            """
            from celery import Celery, shared_task
            from django_tasklock import TaskLockError
            from django_tasklock.celery import OnceTask
            app = Celery("proj", broker="memory://")

            @shared_task(base=OnceTask, on_conflict="later")
            def bad(x): ...

            try:
                app.finalize()
            except TaskLockError as error:
                print(error)
            """
        )
        assert "on_conflict must be one of" in said


def python(code: str) -> str:
    """What a fresh process says, in which Django is not set up."""
    environment = {**os.environ, "DJANGO_SETTINGS_MODULE": "tests.settings", "PYTHONWARNINGS": "error"}
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


class TestEarlyImport:
    def test_before_django_is_set_up(self):
        """As a project's ``celery.py`` does: imported, made the default, tasks declared, and only then set up."""
        said = python(
            """
            from celery import Celery
            from django_tasklock.celery import OnceTask
            from django.apps import apps
            assert not apps.ready and not apps.apps_ready

            app = Celery("proj", task_cls=OnceTask, broker="memory://", backend="cache+memory://")

            @app.task(key="video:{video_id}")
            def process(video_id):
                from django_tasklock import current_lock
                return current_lock().name

            @app.task(base=OnceTask, name="other")
            def other(): ...

            import django
            django.setup()
            assert isinstance(process, OnceTask) and isinstance(other, OnceTask)
            print(process.apply((42,)).get())
            process.delay(1)
            """
        )
        assert said == "video:42\n"

    def test_by_its_path(self, app):
        app.app.task_cls = "django_tasklock.celery:OnceTask"
        app.app.__dict__.pop("Task", None)

        @app.app.task(name="once.by-path", shared=False, lazy=False)
        def body():
            return current_lock().name

        assert body.apply().get().startswith("once.by-path:")

    def test_no_lock_around_celerys_own_tasks(self):
        """They get the app's ``task_cls``, too: ``chord_unlock`` would meet itself, ``map`` could have no key."""
        said = python(
            """
            import django
            django.setup()
            from celery import Celery, chord
            from django_tasklock import list_all_task_locks
            from django_tasklock.celery import OnceTask
            from django_tasklock.locks.lock import TaskLock
            app = Celery("proj", task_cls=OnceTask, broker="memory://", backend="cache+memory://")

            @app.task
            def double(x):
                return 2 * x

            def never(*args, **kwargs):
                raise AssertionError("a lock")

            for name, task in sorted(app.tasks.items()):
                if name.startswith("celery."):
                    assert isinstance(task, OnceTask), name
            TaskLock.acquire = never
            double.map([object()])
            app.tasks["celery.backend_cleanup"].apply().get()
            sent = app.tasks["celery.backend_cleanup"].apply_async(countdown=5)
            """
        )
        assert said == ""
        assert builtins.__name__ == "celery.app.builtins"


class TestDjangoTask:
    def test_it_is_one(self, app):
        assert issubclass(OnceTask, DjangoTask)

    @pytest.mark.database
    @pytest.mark.django_db(transaction=True)
    def test_on_commit(self, app):
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

    @pytest.mark.database
    @pytest.mark.django_db(transaction=True)
    def test_rolled_back(self, app):
        task = app.task(plain)
        with pytest.raises(ZeroDivisionError), transaction.atomic():
            task.delay_on_commit(1)
            task.once(key="a").delay_on_commit(3)
            1 / 0  # noqa: B018
        assert app.all() == []


class TestRun:
    """From a message, as a worker does."""

    def test_under_its_lock(self, app):
        def body(self, x):
            lock = current_lock()
            assert TaskLock(lock.name).locked()
            return lock.name, lock.time_left > 100, self.request.id

        task = app.task(body, bind=True, key="v:{x}", timeout=120, lease=5)
        result = task.delay(1)
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

    def test_the_setting_decides_where_the_task_does_not(self, app, settings):
        settings.TASKLOCK = {**MEMORY, "ON_CONFLICT": "raise"}
        task = app.task(key="a", on_conflict=None)
        assert app.task(key="a").on_conflict == "reject"
        task.delay()
        with TaskLock("a"):
            assert elsewhere(app.run)[0] == "FAILURE"

    @pytest.mark.parametrize(
        ("timeout", "lease", "ttl"),
        [(100, 7, 7), (100, None, 100), (5, OnceTask.lease, 5), (timedelta(minutes=2), timedelta(seconds=9), 9)],
    )
    def test_timeout_and_lease(self, app, timeout, lease, ttl):
        seen = []
        task = app.task(lambda: seen.append(TaskLock("a").info()), key="a", timeout=timeout, lease=lease)
        task.delay()
        assert app.run() == ("SUCCESS", None)
        assert seen[0].ttl == pytest.approx(ttl, abs=1)

    @pytest.mark.database
    @pytest.mark.django_db
    @pytest.mark.parametrize("model", [Video, "testapp.Video"], ids=["class", "label"])
    def test_a_guarded_row(self, app, model):
        def body(self, video_id, fail=False):
            if fail:
                raise ValueError("no such codec")
            return Video.objects.get(pk=video_id).status

        task = app.task(
            body, bind=True, key="video:{video_id}", guard=GUARD, model=model, pk="video_id", on_conflict="skip"
        )
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
    def test_a_direct_call_takes_the_lock(self, app):
        task = app.task(lambda x: current_lock().name, key="v:{x}")
        assert task(1) == "v:1"
        assert get_backend().records() == []

    @pytest.mark.parametrize(
        ("on_conflict", "error"),
        [("raise", TaskLockAcquireError), ("reject", TaskLockAcquireError), ("retry", TaskLockAcquireError),
         ("queue", TaskLockAcquireError), ("coalesce", TaskLockAcquireError), ("wait", TaskLockAcquireError)],
    )  # fmt: skip
    def test_a_direct_call_of_a_busy_one(self, app, on_conflict, error):
        more = {"blocking_timeout": 0.05} if on_conflict == "wait" else {}
        task = app.task(key="a", on_conflict=on_conflict, **more)
        with TaskLock("a"), pytest.raises(error):
            elsewhere(task)
        assert app.calls == []

    def test_a_direct_call_that_skips(self, app):
        task = app.task(key="a", on_conflict="skip")
        with TaskLock("a"):
            assert elsewhere(task)["reason"] == "already_processing"

    @pytest.mark.database
    @pytest.mark.django_db(transaction=True)
    @pytest.mark.parametrize("on_conflict", ["skip", "raise", "wait", "reject", "queue"])
    @pytest.mark.parametrize("way", ["call", "apply", "message"])
    def test_a_task_that_calls_itself_does_not_wait_for_itself(self, app, on_conflict, way):
        """Gold standard 8.22: every word, at once."""

        def body(self, depth=0):
            if depth:
                return "inner"
            try:
                inner = self(depth=1) if way == "call" else self.apply(kwargs={"depth": 1}).result
            except (TaskLockAcquireError, Reject) as error:
                return type(error).__name__
            return inner["status"] if isinstance(inner, dict) else type(inner).__name__

        task = app.task(body, bind=True, key="a", on_conflict=on_conflict)
        if way == "message":
            task.delay()
            said = app.run()[1]
        else:
            said = task() if way == "call" else task.apply().get()
        rejects = "TaskLockAcquireError" if way == "call" else "RejectedHere"
        assert said == {"skip": "skipped", "reject": rejects}.get(on_conflict, "TaskLockAcquireError")

    @pytest.mark.parametrize(
        ("on_conflict", "state"), [("skip", "SUCCESS"), ("raise", "FAILURE"), ("reject", "REJECTED")]
    )
    def test_eager(self, app, on_conflict, state):
        app.app.conf.task_always_eager = True
        task = app.task(lambda x: current_lock().name, key="v:{x}", on_conflict=on_conflict, unique="until_finish")
        assert task.delay(1).get() == "v:1"
        assert task.once(key="a").delay(1).get() == "a"
        with TaskLock("v:1"):
            assert elsewhere(lambda: task.delay(1).state) == state
        assert get_backend().records() == []

    def test_apply(self, app):
        task = app.task(lambda x: current_lock().name, key="v:{x}")
        assert task.apply((1,)).get() == "v:1"
        assert task.apply((1,), once={"key": "a"}).get() == "a"
        assert task.once(key="b").apply((1,)).get() == "b"
        assert task.apply((1,), {"celery_once_key": "c"}).get() == "c"

    def test_an_eager_retry(self, app):
        """It follows the first try, which has let go of the lock."""
        calls = []

        def body(self):
            calls.append(self.request.retries)
            if not self.request.retries:
                raise self.retry(countdown=0)
            return "ran"

        result = app.task(body, bind=True, key="a", on_conflict="wait").apply()
        assert (result.get(), calls) == ("ran", [0, 1])
