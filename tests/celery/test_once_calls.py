"""What the caller of a ``OnceTask`` says replaces what the task says, and never reaches the body.

``once()``, ``once=``, and the ``celery_once_*`` arguments of source 004.
"""

from __future__ import annotations

import logging
from datetime import timedelta

import pytest
from celery import chain

from django_tasklock import TaskLock, TaskLockError
from django_tasklock.backends import get_backend
from django_tasklock.celery import parked_messages
from django_tasklock.celery.options import of_call
from django_tasklock.conf import DEFAULT
from tests.support.guards import elsewhere, held_by_another

pytest_plugins = ["tests.support.celery_site.fixtures", "tests.support.once_fixtures"]
SITE_TASKS = ["tests.support.celery_site.once_tasks"]

ALL = {
    "celery_once_key": "mine",
    "celery_once_timeout": 100,
    "celery_once_blocking_timeout": 5,
    "celery_once_sleep": 1,
    "celery_once_enable_wait": True,
    "celery_once_enable_retry": True,
}


class TestOnce:
    def test_its_verbs(self, app):
        task = app.task(lambda x: app.body(x), key="v:{x}")
        once = task.once(key="mine", on_conflict="wait", blocking_timeout=3)
        once.delay(1)
        once.apply_async((2,))
        once.apply_async(kwargs={"x": 3}, countdown=60)
        once.s(4).apply_async()
        once.s().apply_async((5,))
        once.si(6).apply_async((7,))
        task.s(7).set(once=once.overrides).apply_async()
        messages = app.all()
        header = {"key": "mine", "once": {"on_conflict": "wait", "blocking_timeout": 3}}
        assert [message.ours for message in messages] == [header] * 7
        assert messages[2].headers["eta"]
        for message in messages:
            assert app.run(message) == ("SUCCESS", "ran")
        assert [args[0] for args, _ in app.calls] == [1, 2, 3, 4, 5, 6, 7]
        assert once.apply((8,)).get() == "ran"

    def test_each_option(self, app):
        """What the caller says replaces what the task says, on the worker."""
        seen = []
        task = app.task(lambda: seen.append(TaskLock("a").info().ttl), key="a", timeout=100, lease=50)
        for options, ttl in [
            ({}, 50),
            ({"lease": 20}, 20),
            ({"timeout": timedelta(minutes=3), "lease": None}, 180),
            ({"lease": DEFAULT}, 50),
        ]:
            task.once(**options).delay()
            assert app.run() == ("SUCCESS", None)
            assert seen.pop() == pytest.approx(ttl, abs=1), options

    def test_options_of_the_tasks_own_on_conflict_apply_to_that_value_only(self, app):
        task = app.task(key="a", on_conflict="wait", blocking_timeout=30)
        task.once(on_conflict="skip").delay()
        task.once(blocking_timeout=3).delay()
        assert of_call(task, {"on_conflict": "wait"}).lock.blocking_timeout == 30  # its own word, its own patience
        with pytest.raises(TaskLockError, match="blocking_timeout goes with"):
            task.once(on_conflict="skip", blocking_timeout=3)
        queued = app.task(key="a", on_conflict="queue", queue_limit=3)
        assert of_call(queued, {"on_conflict": "skip"}).lock.queue_limit is None
        unique = app.task(key="a", unique="until_start", unique_for=3)
        assert of_call(unique, {"unique": None}).unique_for is None
        assert of_call(unique, {"unique": "until_finish"}).unique_for == 3

    def test_in_a_chain(self, app):
        task = app.task(lambda x, **more: x, key="v:{x}")
        chain(
            task.once(key="a").s(1), task.s(celery_once_key="b"), task.s().set(once={"key": "c"}), task.s(), app=app.app
        ).apply_async()
        keys = []
        while (message := app.take()) is not None:
            keys.append(message.key)
            assert app.run(message) == ("SUCCESS", 1)
            assert message.kwargs == {}
        assert keys == ["a", "b", "c", "v:1"]

    @pytest.mark.django_db(transaction=True)
    def test_one_call_is_parked_behind_a_task_that_does_not_park(self, app):
        """The release of its holder promotes it, and is not its parent: ``collect()`` would wait for all in line."""
        ended = []

        def body(number):
            if number == 1:
                task.once(on_conflict="queue").apply_async((2,), add_to_parent=False)
                ended.append(elsewhere(app.run)[0])
                assert [row.name for row in parked_messages()] == ["a"]
            return f"ran {number}"

        task = app.task(body, key="a")
        first = task.delay(1)
        assert app.run() == ("SUCCESS", "ran 1")
        assert ended == ["IGNORED"]
        assert not first.children
        assert app.run() == ("SUCCESS", "ran 2")
        assert parked_messages() == []


class TestKeywords:
    """``celery_once_*``, as in source 004: for the lock, never for the body."""

    def test_one_that_does_nothing_says_so_once(self, app, caplog):
        task = app.task(name="makes")
        for _ in range(2):
            task.delay(celery_once_sleep=1, celery_once_blocking_timeout=3)
        assert [record.getMessage() for record in caplog.records if "does nothing" in record.getMessage()] == [
            "task makes: celery_once_sleep does nothing here: a waiter is woken",
            "task makes: celery_once_blocking_timeout does nothing here: the call does not wait for a busy lock",
        ]
        task.delay(celery_once_blocking_timeout=3, celery_once_enable_wait=True)
        assert len(caplog.records) == 2

    def test_who_was_skipped_is_logged(self, app, caplog):
        caplog.set_level(logging.INFO, "django_tasklock")
        task = app.task(name="makes", key="a", on_conflict="skip")
        message_id = task.delay().id
        with held_by_another("a"):
            app.run()
        [record] = [record for record in caplog.records if record.getMessage().startswith("skipped: ")]
        assert record.levelname == "INFO"
        assert record.getMessage().endswith(f"; asked for by makes[{message_id}]")

    @pytest.mark.parametrize("way", ["delay", "send_task", "apply", "eager", "direct"])
    def test_they_never_reach_the_body(self, app, way):
        seen = []

        def body(x, y):
            seen.append(TaskLock("mine").locked())
            return app.body(x, y=y)

        task = app.task(body)
        app.app.conf.task_always_eager = way == "eager"
        kwargs = {"y": 2, **ALL}
        ways = {
            "delay": lambda: task.delay(1, **kwargs),
            "eager": lambda: task.delay(1, **kwargs),
            "send_task": lambda: app.app.send_task(task.name, (1,), kwargs),
            "apply": lambda: task.apply((1,), kwargs),
            "direct": lambda: task(1, **kwargs),
        }
        ways[way]()
        for message in app.all():
            assert app.run(message) == ("SUCCESS", "ran")
        assert app.calls == [((1,), {"y": 2})]
        assert seen == [True]
        assert kwargs == {"y": 2, **ALL}

    @pytest.mark.parametrize(
        ("keywords", "once"),
        [
            ({"celery_once_key": "a"}, {}),
            ({"celery_once_key": None, "celery_once_timeout": None}, {"timeout": None}),
            ({"celery_once_timeout": 9, "celery_once_sleep": 0}, {"timeout": 9}),
            ({"celery_once_enable_wait": True}, {"on_conflict": "wait"}),
            ({"celery_once_enable_wait": False}, {"on_conflict": "reject"}),
            ({"celery_once_enable_retry": False}, {"on_conflict": "reject"}),
            ({"celery_once_enable_wait": False, "celery_once_enable_retry": True}, {"on_conflict": "wait"}),
            (
                {"celery_once_enable_wait": True, "celery_once_blocking_timeout": 7},
                {"on_conflict": "wait", "blocking_timeout": 7},
            ),
            ({"celery_once_blocking_timeout": 7}, {}),  # as in the source: without waiting it says nothing
        ],
    )
    def test_what_they_mean(self, app, keywords, once):
        app.task().apply_async(kwargs=keywords)
        assert app.take().ours["once"] == once

    def test_once_goes_before_them(self, app):
        app.task().apply_async(kwargs=dict(ALL), once={"key": "b", "timeout": 9})
        once = {"timeout": 9, "on_conflict": "wait", "blocking_timeout": 5}
        assert app.take().ours == {"key": "b", "once": once}

    @pytest.mark.parametrize(
        ("keywords", "message"),
        [
            ({"celery_once_tiemout": 3}, "celery_once_tiemout (did you mean 'celery_once_timeout'?); known: celery_"),
            ({"celery_once_timeout": 0}, "timeout must be a positive number"),
            ({"celery_once_sleep": "1"}, "celery_once_sleep must be seconds"),
        ],
    )
    def test_bad_ones(self, app, keywords, message):
        task = app.task()
        for call in (task.delay, task):
            with pytest.raises(TaskLockError) as caught:
                call(**keywords)
            assert message in str(caught.value)
        app.app.send_task(task.name, kwargs=keywords)  # there nobody could check
        state, error = app.run()
        assert (state, type(error)) == ("FAILURE", TaskLockError)
        assert message in str(error)
        assert app.calls == []
        assert get_backend().records() == []

    @pytest.mark.django_db(transaction=True)
    def test_sent_by_name_and_put_aside(self, app):
        """What is sent again keeps what was asked for, and what was counted."""
        task = app.task(on_conflict="retry")
        app.app.send_task(task.name, (1,), {"celery_once_key": "mine", "celery_once_timeout": 100})
        with TaskLock("mine"):
            assert elsewhere(app.run)[0] == "RETRY"
            again = app.take()
            assert again.ours == {"key": "mine", "once": {"timeout": 100}, "waits": 1}
            assert elsewhere(lambda: app.run(again))[0] == "RETRY"
            again = app.take()
            assert again.ours["waits"] == 2
        assert app.run(again) == ("SUCCESS", "ran")
        assert app.calls == [((1,), {})]


@pytest.mark.parametrize("options", [{"key": "a"}, {"unique": "until_start"}])
def test_wrong_arguments(app, options):
    """The publisher is told, and nothing is left behind."""
    task = app.task(lambda x: None, **options)
    for args, kwargs in [((), {}), ((1, 2), {}), ((1,), {"y": 2})]:
        with pytest.raises(TypeError):
            task.apply_async(args, kwargs)
    assert app.all() == []
    assert get_backend().records() == []
