"""An option in the wrong place is an error that says where it belongs, and never a message without its lock."""

from __future__ import annotations

import pytest
from celery import group

from django_tasklock import TaskLockError
from django_tasklock.celery import OnceTask

pytest_plugins = ["tests.support.once_fixtures"]


class TestOfATask:
    @pytest.mark.parametrize(
        ("options", "write"),
        [
            ({"once": {"keys": ["x"], "graceful": True}}, "on_conflict='skip' for graceful"),
            ({"unique_on": ["x"]}, "unique='until_finish', and key="),
            ({"unique_on": "x", "raise_on_duplicate": True}, "is celery-singleton's"),
            ({"lock_expiry": 5}, "write timeout="),
            ({"reentrant": True}, "is task_lock's"),
        ],
    )
    def test_of_other_packages(self, app, options, write):
        with pytest.raises(TaskLockError) as caught:
            app.task(**options)
        assert write in str(caught.value)

    @pytest.mark.parametrize(
        ("option", "meant"),
        [
            ("on_conflit", "on_conflict"), ("timeut", "timeout"), ("time_out", "timeout"), ("keys", "key"),
            ("uniqe", "unique"), ("queue_limits", "queue_limit"), ("onConflict", "on_conflict"), ("gaurd", "guard"),
            ("takeover", "takeovers"), ("on_unavailible", "on_unavailable"),
        ],
    )  # fmt: skip
    def test_misspelt(self, app, option, meant):
        """Celery makes an attribute of it, and the default would drop messages."""
        match = rf"{option}= is no option, and nothing in the task reads it: did you mean {meant}=\?"
        with pytest.raises(TaskLockError, match=match):
            app.task(lambda self: None, bind=True, **{option: 5})

        class Base(OnceTask):
            abstract = True

        setattr(Base, option, 5)
        with pytest.raises(TaskLockError, match=match):
            app.task(base=Base)

    def test_misspelt_and_without_the_base(self, app):
        with pytest.raises(TaskLockError, match=r"on_conflit= is no option.*did you mean on_conflict="):
            app.task(base=app.app.Task, on_conflit="queue")

    def test_an_attribute_of_the_project_that_its_code_reads(self, app):
        class Base(OnceTask):
            abstract = True
            models = ("a", "b")

            def known(self):
                return list(self.models)

        task = app.task(lambda self: self.timeouts, base=Base, bind=True, timeouts=(5, 9), timeout_seconds=5)
        assert (task.timeouts, task.timeout_seconds, task.known()) == ((5, 9), 5, ["a", "b"])

    def test_without_the_base(self, app):
        with pytest.raises(
            TaskLockError, match=r"on_conflict= means nothing .* base=OnceTask .*@task_lock\(\.\.\., on_conflict"
        ):
            app.task(base=app.app.Task, on_conflict="queue")

    def test_a_base_of_the_project_that_has_it(self, app):
        class Theirs(app.app.Task):  # type: ignore[misc,name-defined]
            abstract = True
            on_conflict = "none"

        assert app.task(base=Theirs, on_conflict="some").on_conflict == "some"


class TestOfACall:
    @pytest.mark.parametrize(
        "options", [{"on_conflict": "queue"}, {"key": "a"}, {"unique": "until_start"}, {"lease": 5}]
    )
    def test_among_those_of_publishing(self, app, options):
        task = app.task(lambda x=None: None, key="v:{x}")
        with pytest.raises(TaskLockError, match=rf"task\.once\({next(iter(options))}=\.\.\.\)"):
            task.apply_async((1,), **options)
        assert app.take() is None

    @pytest.mark.django_db
    def test_in_each_way_to_publish(self, app, django_capture_on_commit_callbacks):
        task = app.task(lambda x=None: None, key="v:{x}")
        options = {"on_conflict": "queue"}

        def on_commit() -> None:
            with django_capture_on_commit_callbacks(execute=True):
                task.apply_async_on_commit((1,), **options)

        for publish in (
            lambda: task.apply((1,), **options),
            lambda: task.s(1).set(**options).delay(),
            lambda: group(task.s(1), task.s(2)).apply_async(**options),
            on_commit,
            lambda: task.once(timeout=5).apply_async((1,), **options),
        ):
            with pytest.raises(TaskLockError, match=r"task\.once\(on_conflict=\.\.\.\)"):
                publish()
        assert app.take() is None

    def test_of_a_retry(self, app):
        """The body fails with it; Celery would end the message as rejected."""
        task = app.task(lambda self: self.retry(on_conflict="queue"), bind=True, key="a")
        task.delay()
        state, error = app.run()
        assert (state, type(error)) == ("FAILURE", TaskLockError)
        assert "task.once(on_conflict=...).retry(...)" in str(error) or "once={'on_conflict'" in str(error)

    def test_what_is_celerys_and_kombus(self, app):
        task = app.task(lambda: "ran", key="a")
        more = {"queue": app.queue, "retry": False, "timeout": 5, "serializer": "json", "headers": {"key": "k"}}
        task.apply_async(countdown=1, expires=100, priority=1, ignore_result=False, time_limit=2, shadow="s", **more)
        task.s().stamp(key="stamp").apply_async()
        assert len(app.all()) == 2


def test_one_app_s_settings_stay_its_own(app):
    """A task of one app must not bind ``OnceTask`` itself: every task of every other app would inherit its settings."""
    app.app.conf.task_ignore_result = True
    assert app.task(key="a").ignore_result
    assert not OnceTask.__bound__
    assert "ignore_result" not in vars(OnceTask)
