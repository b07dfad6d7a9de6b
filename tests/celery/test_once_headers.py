"""Our header counts for the task and the message that it was written for, and no body sees it.

Projects send ``self.request.headers`` on.
"""

from __future__ import annotations

from typing import Any

import pytest
from celery import Task

from django_tasklock import current_lock, task_lock
from django_tasklock.celery import OnceTask
from django_tasklock.celery.message import HEADER, RECEIVED, Message, header_of
from django_tasklock.types import monotonic
from tests.support.once_app import OnceApp

pytest_plugins = ["tests.support.once_fixtures"]


@pytest.fixture
def current(app: OnceApp) -> OnceApp:
    """The same, as the app of this thread: whoever decorates a function is not asked which app is meant."""
    app.app.set_current()
    return app


def locked_by_now() -> str:
    lock = current_lock()
    return lock.name


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

        task = app.task(body, bind=True, key="v:{x}")
        task.delay(1)
        assert [app.run()[1] for _ in range(3)] == ["v:1", "v:2", "v:3"]

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

        task = app.task(body, bind=True, base=base)
        task.delay()
        app.run(**{RECEIVED: monotonic() - 61})
        assert seen == [(None, True)]

    def test_nor_that_of_a_decorated_task(self, current):
        """Whose next try keeps its place in the line all the same."""
        seen = []

        @task_lock("a", on_conflict="queue")
        def work(self: Any) -> str:
            seen.append(self.request.headers)
            if not self.request.retries:
                raise self.retry(countdown=0)
            return "ran"

        task = current.task(work, base=current.app.Task, bind=True)
        task.delay()
        first = current.take()
        assert current.run(first)[0] == "RETRY"
        second = current.take()
        assert all(HEADER not in (headers or {}) for headers in seen)
        assert second.ours["number"] == first.ours["number"]
        assert current.run(second) == ("SUCCESS", "ran")

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

    def test_a_plain_child_gets_nothing(self, app):
        parent = app.task(lambda: None, key="p")
        parent.delay()
        plain = app.task(lambda: "ran", base=app.app.Task)
        plain.apply_async(headers={HEADER: app.take().headers[HEADER], "tenant": "t"})
        message = app.take()
        assert (HEADER in message.headers, message.headers["tenant"]) == (False, "t")

    def test_what_replaces_a_task_is_another_message(self, app):
        """It has the same id."""

        def body(self: Any, x: int) -> str:
            if x == 1:
                raise self.replace(self.s(2).set(headers=self.request.headers))
            return locked_by_now()

        task = app.task(body, bind=True, key="v:{x}", on_conflict="queue")
        first = task.delay(1)
        app.run()
        message = app.take()
        assert (message.id, message.key) == (first.id, "v:2")
        assert app.run(message) == ("SUCCESS", "v:2")


def test_task_protocol_1(app):
    """What Celery says of a message is in its body then."""
    app.app.conf.task_protocol = 1
    task = app.task(lambda: locked_by_now(), key="a", unique="until_finish")
    first = task.once(key="mine").delay()
    assert task.once(key="mine").delay().id == first.id
    assert app.run() == ("SUCCESS", "mine")
    assert task.once(key="mine").delay().id != first.id


@pytest.mark.django_db(transaction=True)
def test_a_decorated_task_by_protocol_1(current):
    """It lines up, and its next try keeps its place."""
    current.app.conf.task_protocol = 1

    @task_lock("a:{x}", on_conflict="queue")
    def work(self: Any, x: int) -> str:
        if not self.request.retries:
            raise self.retry(countdown=0)
        return locked_by_now()

    current.task(work, base=current.app.Task, bind=True).delay(1)
    first = current.take()
    assert current.run(first)[0] == "RETRY"
    second = current.take()
    assert second.ours["number"] == first.ours["number"]
    assert current.run(second) == ("SUCCESS", "a:1")


def test_one_of_another_message_is_ignored(app):
    parent, child = app.task(lambda: None, key="p"), app.task(lambda: locked_by_now(), key="c")
    parent.delay()
    theirs = app.take().headers[HEADER]
    child.delay()
    message = app.take()
    message.headers[HEADER] = theirs
    assert app.run(message) == ("SUCCESS", "c")
