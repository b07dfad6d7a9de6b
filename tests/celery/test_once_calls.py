"""One call of a ``OnceTask`` with options of its own: ``once()``, ``once=``, and the arguments of source 004."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from celery import chain, chord, group, signature
from celery.canvas import Signature
from celery.signals import before_task_publish

from django_tasklock import TaskLock, TaskLockAcquireError, TaskLockError
from django_tasklock.backends import get_backend
from django_tasklock.backends.memory import reset
from django_tasklock.celery import Once, OnceTask, parked_messages
from django_tasklock.celery.options import of_call
from django_tasklock.conf import DEFAULT
from tests.support.guards import MEMORY, elsewhere
from tests.support.once_app import OnceApp, once_app

pytest_plugins = ["tests.support.celery_site.fixtures"]
SITE_TASKS = ["tests.support.celery_site.api_tasks", "tests.support.celery_site.once_tasks"]

ALL = {
    "celery_once_key": "mine",
    "celery_once_timeout": 100,
    "celery_once_blocking_timeout": 5,
    "celery_once_sleep": 1,
    "celery_once_enable_wait": True,
    "celery_once_enable_retry": True,
}


@pytest.fixture
def app(settings: Any) -> Iterator[OnceApp]:
    settings.TASKLOCK = MEMORY
    reset()
    with once_app() as made:
        yield made


class TestOnce:
    def test_its_verbs(self, app):
        task = app.task(lambda x: app.body(x), key="v:{x}")
        once = task.once(key="mine", on_conflict="wait", blocking_timeout=3)
        assert isinstance(once, Once)
        once.delay(1)
        once.apply_async((2,))
        once.apply_async(kwargs={"x": 3}, countdown=60)
        once.s(4).apply_async()
        once.s().apply_async((5,))
        once.si(6).apply_async((7,))
        messages = app.all()
        header = {"key": "mine", "once": {"on_conflict": "wait", "blocking_timeout": 3}}
        assert [message.ours for message in messages] == [{**header, "once": {**header["once"]}}] * 6
        assert messages[2].headers["eta"]
        for message in messages:
            assert app.run(message) == ("SUCCESS", "ran")
        assert [args[0] for args, _ in app.calls] == [1, 2, 3, 4, 5, 6]
        assert once.apply((8,)).get() == "ran"

    def test_the_key_is_literal(self, app):
        task = app.task(lambda x: None, key="v:{x}")
        task.once(key="a:{x}").delay(1)
        assert app.take().key == "a:{x}"

    def test_each_option(self, app):
        """What the caller says replaces what the task says, on the worker."""
        seen = []
        task = app.task(lambda: seen.append(TaskLock("a").info().ttl), key="a", timeout=100, lease=50)
        for options, ttl in [
            ({}, 50),
            ({"lease": 20}, 20),
            ({"lease": timedelta(seconds=21)}, 21),
            ({"lease": None}, 100),
            ({"timeout": 60}, 50),
            ({"timeout": 50, "lease": None}, 50),
            ({"timeout": timedelta(minutes=3), "lease": None}, 180),
            ({"timeout": None, "lease": None}, 3600),
            ({"lease": DEFAULT}, 50),
        ]:
            task.once(**options).delay()
            assert app.run() == ("SUCCESS", None)
            assert seen.pop() == pytest.approx(ttl, abs=1), options

    def test_a_shorter_timeout_than_the_tasks_own_lease_says_so(self, app):
        with pytest.raises(TaskLockError, match="lease .50. .* is longer than its timeout"):
            app.task(lease=50).once(timeout=10)

    @pytest.mark.parametrize(
        ("on_conflict", "state"),
        [("skip", "SUCCESS"), ("raise", "FAILURE"), ("reject", "IGNORED"), ("wait", "FAILURE")],
    )
    def test_on_conflict(self, app, on_conflict, state):
        task = app.task(lambda: None, key="a", on_conflict="retry")
        more = {"blocking_timeout": 0.05} if on_conflict == "wait" else {}
        task.once(on_conflict=on_conflict, **more).delay()
        with TaskLock("a"):
            outcome = elsewhere(app.run)
        assert outcome[0] == state
        assert app.all() == []

    def test_options_of_the_tasks_own_on_conflict_apply_to_that_value_only(self, app):
        task = app.task(key="a", on_conflict="wait", blocking_timeout=30)
        task.once(on_conflict="skip").delay()
        task.once(blocking_timeout=3).delay()
        task.once(on_conflict="wait").delay()  # its own word: with its own patience
        assert of_call(task, {"on_conflict": "wait"}).lock.blocking_timeout == 30
        with pytest.raises(TaskLockError, match="blocking_timeout goes with"):
            task.once(on_conflict="skip", blocking_timeout=3)
        queued = app.task(key="a", on_conflict="queue", queue_limit=3)
        assert of_call(queued, {"on_conflict": "skip"}).lock.queue_limit is None
        assert of_call(queued, {"queue_limit": None}).lock.queue_limit is None
        unique = app.task(key="a", unique="until_start", unique_for=3)
        assert of_call(unique, {"unique": None}).unique_for is None
        assert of_call(unique, {"unique": "until_finish"}).unique_for == 3

    def test_store_down(self, app):
        task = app.task(on_unavailable="run")
        assert of_call(task, {"on_unavailable": "raise"}).lock.on_unavailable == "raise"

    def test_without_options_it_is_the_task(self, app):
        task = app.task(lambda x: None, key="v:{x}")
        task.once().delay(1)
        task.delay(1)
        first, second = app.all()
        assert first.ours == second.ours


class TestSignatures:
    def test_they_are_json(self, app):
        task = app.task(lambda x: app.body(x), key="v:{x}")
        sig = task.once(key="a", timeout=timedelta(minutes=2), lease=DEFAULT, on_conflict="wait").s(1)
        sent = Signature.from_dict(json.loads(json.dumps(dict(sig))), app=app.app)
        sent.apply_async()
        assert app.take().ours == {"key": "a", "once": {"timeout": 120.0, "on_conflict": "wait"}}

    def test_set(self, app):
        task = app.task(lambda x: None, key="v:{x}")
        task.s(1).set(once={"key": "a"}).apply_async()
        task.s(1).set(once={"key": "a"}, countdown=60).apply_async()
        assert [message.key for message in app.all()] == ["a", "a"]

    def test_bad_options_are_refused_when_it_is_sent(self, app):
        sig = app.task(lambda x: None).s(1).set(once={"on_conflict": "later"})
        with pytest.raises(TaskLockError, match="on_conflict must be one of"):
            sig.apply_async()
        assert app.all() == []

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

    def test_in_a_group(self, app):
        task = app.task(lambda x, **more: x, key="v:{x}")
        members = [task.once(key="a").s(1), task.s(2, celery_once_key="b"), task.s(3)]
        group(members, app=app.app).apply_async()
        messages = app.all()
        assert [message.key for message in messages] == ["a", "b", "v:3"]
        assert [message.kwargs for message in messages] == [{}, {}, {}]


class TestKeywords:
    """``celery_once_*``, as in source 004: for the lock, never for the body."""

    @pytest.mark.parametrize("typed", [True, False], ids=["typed", "anything"])
    @pytest.mark.parametrize(
        "way",
        [
            "delay",
            "apply_async",
            "signature",
            "clone",
            "send_task",
            "apply",
            "eager",
            "direct",
            "chain",
            "beat",
            "once",
        ],
    )
    def test_they_never_reach_the_body(self, app, typed, way):
        seen = []

        def body(x, y=2):
            seen.append(TaskLock("mine").locked())
            return app.body(x, y=y)

        def any_body(*args, **kwargs):
            seen.append(TaskLock("mine").locked())
            return app.body(*args, **kwargs)

        task = app.task(body if typed else any_body)
        entry = {"args": [1], "kwargs": {"y": 2, **ALL}, "options": {"expires": 100}}
        ways = {
            "delay": lambda: task.delay(1, y=2, **ALL),
            "apply_async": lambda: task.apply_async((1,), {"y": 2, **ALL}),
            "signature": lambda: task.s(1, y=2, **ALL).apply_async(),
            "clone": lambda: task.s(1).clone(kwargs={"y": 2, **ALL}).delay(),
            "send_task": lambda: app.app.send_task(task.name, (1,), {"y": 2, **ALL}),
            "apply": lambda: task.apply((1,), {"y": 2, **ALL}),
            "direct": lambda: task(1, y=2, **ALL),
            "chain": lambda: chain(task.s(1, y=2, **ALL), app=app.app).apply_async(),
            "beat": lambda: task.apply_async(entry["args"], entry["kwargs"], producer=None, **entry["options"]),
            "once": lambda: task.once(timeout=50).delay(1, y=2, **ALL),
        }
        if way == "eager":
            app.app.conf.task_always_eager = True
            task.delay(1, y=2, **ALL)
        else:
            ways[way]()
        for message in app.all():
            assert app.run(message) == ("SUCCESS", "ran")
        assert app.calls == [((1,), {"y": 2})]
        assert seen == [True]

    def test_the_callers_dict_is_not_changed(self, app):
        task = app.task()
        kwargs = dict(ALL)
        task.apply_async(kwargs=kwargs)
        assert kwargs == ALL

    @pytest.mark.parametrize(
        ("keywords", "once"),
        [
            ({}, {}),
            ({"celery_once_key": "a"}, {}),
            (
                {"celery_once_key": None, "celery_once_timeout": None, "celery_once_blocking_timeout": None},
                {"timeout": None},
            ),
            ({"celery_once_timeout": 9}, {"timeout": 9}),
            ({"celery_once_sleep": 0.1}, {}),
            ({"celery_once_sleep": 0}, {}),
            ({"celery_once_key": ""}, {}),
            ({"celery_once_enable_wait": True}, {"on_conflict": "wait"}),
            ({"celery_once_enable_retry": True}, {"on_conflict": "wait"}),
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

    def test_patience_for_a_task_that_waits(self, app):
        task = app.task(key="a", on_conflict="wait")
        task.delay(celery_once_blocking_timeout=0.05)
        with TaskLock("a"):
            state, error = elsewhere(app.run)
        assert (state, type(error)) == ("FAILURE", TaskLockAcquireError)
        task.apply_async(kwargs={"celery_once_blocking_timeout": 7}, once={"on_conflict": "skip"})
        assert app.take().ours["once"] == {"on_conflict": "skip"}

    def test_once_goes_before_them(self, app):
        app.task().apply_async(kwargs=dict(ALL), once={"key": "b", "timeout": 9})
        assert app.take().ours == {
            "key": "b", "once": {"timeout": 9, "on_conflict": "wait", "blocking_timeout": 5}
        }  # fmt: skip

    @pytest.mark.parametrize(
        ("keywords", "message"),
        [
            ({"celery_once_tiemout": 3}, "celery_once_tiemout (did you mean 'celery_once_timeout'?); known: celery_"),
            ({"celery_once_key": 42}, "a lock name must be str, not int"),
            ({"celery_once_timeout": 0}, "timeout must be a positive number"),
            ({"celery_once_timeout": "60"}, "timeout must be seconds"),
            ({"celery_once_sleep": -1}, "celery_once_sleep must be a positive number"),
            ({"celery_once_sleep": "1"}, "celery_once_sleep must be seconds"),
            ({"celery_once_enable_wait": True, "celery_once_blocking_timeout": -1}, "blocking_timeout must be"),
        ],
        ids=lambda value: next(iter(value.items())) if isinstance(value, dict) else "",
    )  # fmt: skip
    @pytest.mark.parametrize("way", ["delay", "send_task", "direct"])
    def test_bad_ones(self, app, keywords, message, way):
        task = app.task()
        if way == "send_task":  # there nobody could check
            app.app.send_task(task.name, kwargs=keywords)
            state, error = app.run()
            assert (state, type(error)) == ("FAILURE", TaskLockError)
            assert message in str(error)
        else:
            with pytest.raises(TaskLockError) as caught:
                (task.delay if way == "delay" else task)(**keywords)
            assert message in str(caught.value)
        assert app.all() == []
        assert app.calls == []
        assert get_backend().records() == []

    @pytest.mark.database
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


class TestTyping:
    @pytest.mark.parametrize(
        "options", [{}, {"key": "a"}, {"key": "a", "unique": "until_finish"}, {"unique": "until_start"}]
    )
    def test_wrong_arguments(self, app, options):
        """The publisher is told, and nothing is left behind."""
        task = app.task(lambda x: None, **options)
        for args, kwargs in [((), {}), ((1, 2), {}), ((1,), {"y": 2}), ((), {"y": 2})]:
            with pytest.raises(TypeError):
                task.apply_async(args, kwargs)
        assert app.all() == []
        assert get_backend().records() == []


class TestOnWorkers:
    def test_every_way(self, celery_site):
        """The same, published to a real worker: chains, groups, chords, by name."""
        celery_site.configure()
        celery_site.worker(concurrency=4)
        task = celery_site.task("anything")
        assert isinstance(task, OnceTask)
        quick = {"celery_once_sleep": 0.1, "celery_once_enable_wait": True}
        singles = [
            task.delay(1, a=2, celery_once_key="k0", **quick),
            task.once(key="k1").delay(1, a=2),
            task.s(1, a=2, celery_once_key="k2").apply_async(),
            celery_site.app.send_task(task.name, (1,), {"a": 2, "celery_once_key": "k3", **quick}),
            signature(task.name, (1,), {"a": 2, "celery_once_key": "k4"}, app=celery_site.app).apply_async(),
            celery_site.app.send_task(task.name, (1,), {"a": 2}, headers={}),
        ]
        got = [celery_site.outcome(result)[1] for result in singles]
        assert [each["kwargs"] for each in got] == [{"a": 2}] * 6
        assert [each["args"] for each in got] == [[1]] * 6
        assert [each["lock"] for each in got[:5]] == [f"k{number}" for number in range(5)]
        assert got[5]["lock"] == task.lock_name(1, a=2)

        chained = chain(
            task.s(1, celery_once_key="c0"), task.s(**quick, celery_once_key="c1"), task.once(key="c2").s(), task.si(9)
        ).apply_async()
        celery_site.outcome(chained)
        header = [task.s(number, celery_once_key=f"h{number}", **quick) for number in range(3)]
        body = task.once(key="body").s(b=1)
        state, value = celery_site.outcome(chord(header)(body))
        assert state == "SUCCESS"
        assert (value["lock"], value["kwargs"]) == ("body", {"b": 1})
        assert [each["lock"] for each in value["args"][0]] == ["h0", "h1", "h2"]
        calls = celery_site.events("called")
        assert [event.key for event in calls if event.key.startswith("c")] == ["c0", "c1", "c2"]
        assert not [event for event in calls if "celery_once" in json.dumps(event.more["kwargs"])]

    def test_what_a_call_says_is_what_happens(self, celery_site):
        worker = celery_site.worker(concurrency=2)
        gate = celery_site.gate()
        celery_site.publish("once_hold", "a", until=gate)
        celery_site.started("a")
        skipped = celery_site.publish("once_hold", "a", once={"on_conflict": "skip"})
        assert celery_site.outcome(skipped)[1]["reason"] == "already_processing"
        failed = celery_site.publish("once_hold", "a", once={"on_conflict": "raise"})
        assert celery_site.outcome(failed)[0] == "FAILURE"
        other = celery_site.publish("once_hold", "a", once={"key": "another"})
        assert celery_site.outcome(other) == ("SUCCESS", {"status": "success", "key": "a"})
        celery_site.publish("once_hold", "a")
        celery_site.wait_until(lambda: "reject: lock 'hold:a'" in worker.log())
        gate.open()
        celery_site.wait_until(lambda: celery_site.lock("hold:a") is None, 10)

    @pytest.mark.parametrize("name", ["queued_hold", "queueing_hold"])
    def test_queued_by_a_publisher_that_knows_nothing_of_the_task(self, celery_site, monkeypatch, name):
        """Another project sends it by its name: its place in the line is the one it arrived in, and it keeps it."""
        worker = celery_site.worker(concurrency=2)
        gate = celery_site.gate()
        full = celery_site.task(name).name
        monkeypatch.setattr(before_task_publish, "receivers", [])
        results = [celery_site.app.send_task(full, ("a",), {"until": gate})]
        celery_site.started("a")
        for number in range(3):
            results.append(celery_site.app.send_task(full, ("a",), {"number": number}))
            celery_site.wait_until(lambda number=number: len(parked_messages("hold:a")) == number + 1)
        gate.open()
        for result in results:
            assert celery_site.outcome(result)[0] == "SUCCESS"
        assert [event.more.get("number") for event in celery_site.events("start", key="a")] == [None, 0, 1, 2]
        assert worker.log().count("queue: lock") < 6  # each is put aside once, or nearly
