"""Our header counts for the task and the message that it was written for, and no body sees it.

Projects send ``self.request.headers`` on. A next try has the lock of its own arguments; ``autoretry_for`` takes a busy
lock as it takes what the body raises; in ``map()`` and ``chunks()`` a busy element costs the others nothing.
"""

from __future__ import annotations

from typing import Any

import pytest
from celery import Task
from celery.exceptions import Ignore

from django_tasklock import TaskLock, TaskLockAcquireError, current_lock, task_lock
from django_tasklock.backends import get_backend
from django_tasklock.celery import OnceTask
from django_tasklock.celery.message import HEADER, RECEIVED, Message, header_of
from django_tasklock.types import monotonic
from tests.support.guards import elsewhere
from tests.support.once_app import OnceApp

pytest_plugins = ["tests.support.once_fixtures"]


@pytest.fixture
def current(app: OnceApp) -> OnceApp:
    """The same, as the app of this thread: whoever decorates a function is not asked which app is meant."""
    app.app.set_current()
    return app


def locked_by_now() -> str:
    return current_lock().name


@pytest.mark.django_db(transaction=True)
class TestSentOn:
    def test_a_child_has_its_own_lock(self, app):
        """With what its parent's body sees as headers, tenants and trace ids among them."""
        child = app.task(lambda x: locked_by_now(), key="child:{x}")

        def body(self: Any, x: int) -> str:
            child.apply_async((x,), headers={**(self.request.headers or {}), "more": "m"})
            return locked_by_now()

        parent = app.task(body, bind=True, key="parent:{x}", on_conflict="queue", unique="until_finish")
        parent.apply_async((1,), headers={"tenant": "t"})
        assert app.run() == ("SUCCESS", "parent:1")
        message = app.take()
        assert (message.headers["tenant"], message.headers["more"]) == ("t", "m")
        assert (message.key, set(message.ours)) == ("child:1", {"key", "once"})
        assert app.run(message) == ("SUCCESS", "child:1")

    def test_one_of_the_same_task_too(self, app):
        """Two of one key at once, or one that is rejected for nothing: the task's name alone says too little."""

        def body(self: Any, x: int) -> str:
            if x < 3:
                self.apply_async((x + 1,), headers=self.request.headers)
            return locked_by_now()

        app.task(body, bind=True, key="v:{x}").delay(1)
        assert [app.run()[1] for _ in range(3)] == ["v:1", "v:2", "v:3"]

    def test_what_rabbitmq_adds_to_a_delayed_one_is_not(self, app):
        """It counts the queues in which the message has expired, and drops it when it comes to one of them again."""
        added = {"x-death": [{"queue": "delayed"}], "x-first-death-queue": "delayed", "x-last-death-reason": "expired"}
        deferred = app.task(key="delayed", on_conflict="retry")
        retried = app.task(lambda self: self.retry(), bind=True, key="delayed again")
        with TaskLock("delayed"):
            for task in (deferred, retried):
                task.apply_async(headers={**added, "tenant": "t"})
                elsewhere(app.run)
                message = app.take()
                assert (message.headers["tenant"], message.headers.keys() & added.keys()) == ("t", set())

    def test_one_of_another_message_is_ignored(self, app):
        parent, child = app.task(lambda: None, key="p"), app.task(lambda: locked_by_now(), key="c")
        parent.delay()
        theirs = app.take().headers[HEADER]
        child.delay()
        message = app.take()
        message.headers[HEADER] = theirs
        assert app.run(message) == ("SUCCESS", "c")
        plain = app.task(lambda: "ran", base=app.app.Task)
        plain.apply_async(headers={HEADER: theirs, "tenant": "t"})
        message = app.take()
        assert (HEADER in message.headers, message.headers["tenant"]) == (False, "t")

    def test_the_body_does_not_see_it(self, app):
        seen = []
        task = app.task(lambda self: seen.append((self.request.headers, header_of(self.request))), bind=True, key="a")
        task.apply_async(headers={"tenant": "t"})
        app.run()
        task.apply(headers={"tenant": "t"}, once={"key": "b"})
        for headers, ours in seen:
            assert (HEADER in headers, headers["tenant"]) == (False, "t")
            assert ours["once"] in ({}, {"key": "b"})

    @pytest.mark.parametrize("base", [Task, OnceTask])
    def test_nor_when_a_worker_was_given_the_message(self, app, base):
        """Of no task at all: it is noted of every message, and is the worker's own clock."""
        seen = []

        def body(self: Any) -> None:
            seen.append((self.request.headers, Message(self).seconds_buffered > 60))

        app.task(body, bind=True, base=base).delay()
        app.run(**{RECEIVED: monotonic() - 61})
        assert seen == [(None, True)]

    @pytest.mark.parametrize("protocol", [1, 2])
    def test_nor_that_of_a_decorated_task(self, current, protocol):
        """Whose next try keeps its place in the line all the same."""
        seen = []
        current.app.conf.task_protocol = protocol

        @task_lock("a:{x}", on_conflict="queue")
        def work(self: Any, x: int) -> str:
            seen.append(self.request.headers)
            if not self.request.retries:
                raise self.retry(countdown=0)
            return locked_by_now()

        current.task(work, base=current.app.Task, bind=True).delay(1)
        first = current.take()
        assert current.run(first)[0] == "RETRY"
        second = current.take()
        assert all(HEADER not in (headers or {}) for headers in seen)
        assert second.ours["number"] == first.ours["number"]
        assert current.run(second) == ("SUCCESS", "a:1")

    @pytest.mark.parametrize("decorated", [False, True])
    def test_the_next_page_has_the_place_of_the_page_before(self, current, decorated):
        """What was published behind the first stays behind both."""

        def body(self: Any, page: int, key: str = "a") -> str:
            if page == 1:
                raise self.replace(self.s(2, key))
            return locked_by_now()

        if decorated:
            locked = task_lock("{key}", on_conflict="queue")(body)
            task = current.task(locked, bind=True, base=current.app.Task)
        else:
            task = current.task(body, bind=True, key="{key}", on_conflict="queue")
        task.delay(1)
        first = current.take()
        assert current.run(first)[0] == "IGNORED"
        second = current.take()
        assert second.ours["number"] == first.ours["number"]
        assert current.run(second) == ("SUCCESS", "a")

    def test_what_replaces_a_task_is_another_message(self, app):
        """It has the same id."""

        def body(self: Any, x: int) -> str:
            if x == 1:
                raise self.replace(self.s(2).set(headers=self.request.headers))
            return locked_by_now()

        first = app.task(body, bind=True, key="v:{x}", on_conflict="queue").delay(1)
        app.run()
        message = app.take()
        assert (message.id, message.key) == (first.id, "v:2")
        assert app.run(message) == ("SUCCESS", "v:2")


def test_task_protocol_1(app):
    """What Celery says of a message is in its body then."""
    app.app.conf.task_protocol = 1
    task = app.task(lambda: locked_by_now(), key="a", unique="until_finish").once(key="mine")
    first = task.delay()
    assert task.delay().id == first.id
    assert app.run() == ("SUCCESS", "mine")
    assert task.delay().id != first.id


def again(self: Any, x: Any, y: Any = None) -> str:
    """Tries once more, with ``y``."""
    if not self.request.retries:
        raise self.retry(args=(y,), kwargs={}, countdown=0)
    return locked_by_now()


class TestOtherArguments:
    """Of ``retry(args=...)``: another lock, and nothing of the one before."""

    @pytest.mark.parametrize("options", [{"key": "v:{x}"}, {}])
    def test_another_lock(self, app, options):
        task = app.task(again, bind=True, **options)
        task.delay(1, 2)
        assert app.run()[0] == "RETRY"
        message = app.take()
        assert app.run(message) == ("SUCCESS", task.lock_name(2))
        assert message.key == task.lock_name(2)

    @pytest.mark.parametrize("kept", [False, True])
    def test_what_was_unique_is_free(self, app, kept):
        task = app.task(again, bind=True, key="v:{x}", unique="until_finish")
        task.delay(1, 1 if kept else 2)
        app.run()
        names = {record.name for record in get_backend().records()}
        assert names == ({f"unique:{task.name}:v:1"} if kept else set())
        message = app.take()
        assert ("unique" in message.ours) == kept
        assert app.run(message) == ("SUCCESS", f"v:{1 if kept else 2}")
        assert get_backend().records() == []

    @pytest.mark.django_db(transaction=True)
    def test_its_place_in_the_line_was_that_of_another_lock(self, app):
        app.task(again, bind=True, key="v:{x}", on_conflict="queue").delay(1, 2)
        app.run()
        message = app.take()
        assert "number" not in message.ours
        assert app.run(message) == ("SUCCESS", "v:2")

    @pytest.mark.parametrize("way", ["once", "keyword by name"])
    def test_a_key_that_the_caller_has_chosen_stays(self, app, way):
        task = app.task(again, bind=True, key="v:{x}")
        if way == "once":
            task.once(key="mine").delay(1, 2)
        else:
            app.app.send_task(task.name, (1, 2), {"celery_once_key": "mine"})
        app.run()
        assert app.run() == ("SUCCESS", "mine")


class TestAutoretry:
    """``autoretry_for`` takes what is raised before the body as it takes what the body raises."""

    def test_for_a_busy_lock(self, app):
        task = app.task(
            lambda self: self.request.retries, bind=True, key="a", on_conflict="raise",
            autoretry_for=(TaskLockAcquireError,), retry_kwargs={"max_retries": 2, "countdown": 0},
        )  # fmt: skip
        task.delay()
        with TaskLock("a"):
            assert [elsewhere(app.run)[0] for _ in range(2)] == ["RETRY", "RETRY"]
            last = app.take()
            state, error = elsewhere(lambda: app.run(last))
            assert (state, type(error)) == ("FAILURE", TaskLockAcquireError)
        assert app.run(last) == ("SUCCESS", 2)

    @pytest.mark.parametrize("way", ["spared", "reject"])
    def test_only_as_it_says(self, app, way):
        more = {"dont_autoretry_for": (TaskLockAcquireError,)} if way == "spared" else {}
        word = "reject" if way == "reject" else "raise"
        app.task(key="a", on_conflict=word, autoretry_for=(Exception,), **more).delay()
        with TaskLock("a"):
            state, error = elsewhere(app.run)
        assert (state, isinstance(error, Ignore)) == (("IGNORED", True) if way == "reject" else ("FAILURE", False))
        assert app.take() is None


class TestElements:
    """Of ``map``, ``starmap`` and ``chunks``: one that is busy costs the others nothing."""

    @pytest.mark.parametrize(
        ("way", "word"), [("map", "queue"), ("starmap", "retry"), ("chunks", "skip"), ("decorated", "retry")]
    )
    def test_busy_ones_are_skipped(self, app, word, way):
        if way == "decorated":
            task = app.task(task_lock("v:{x}", on_conflict=word)(lambda x: x), base=app.app.Task)
        else:
            task = app.task(lambda x: x, key="v:{x}", on_conflict=word)
        numbers, tuples = [1, 2, 3], [(1,), (2,), (3,)]
        if way == "chunks":
            task.chunks(tuples, 3).group().apply_async()
        else:
            (task.starmap(tuples) if way == "starmap" else task.map(numbers)).apply_async()
        with TaskLock("v:2"):
            state, values = elsewhere(app.run)
        assert state == "SUCCESS"
        assert (values[0], values[2], values[1]["reason"]) == (1, 3, "already_processing")

    @pytest.mark.parametrize("way", ["raise", "inside of an element", "inside of a plain task"])
    def test_a_failure_is_one(self, app, way):
        """What an element calls is no element; a plain task that called a busy one ended itself as rejected."""
        busy = app.task(lambda x: x, key="v:{x}", on_conflict="raise" if way == "raise" else "reject")
        outer = app.task(lambda x: busy(x), key="outer:{x}")
        plain = app.task(lambda x: busy(x), base=app.app.Task)
        {"raise": busy.map([1, 2]), "inside of an element": outer.map([1])}.get(way, plain.s(1)).apply_async()
        with TaskLock("v:1"):
            state, error = elsewhere(app.run)
        assert (state, type(error)) == ("FAILURE", TaskLockAcquireError)
