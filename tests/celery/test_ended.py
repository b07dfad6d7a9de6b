"""What has ended is not started again, if its worker is killed before the acknowledgement; and nothing else is lost.

That the body has ended is known by a mark that the release of its lock leaves, or, where somebody waits for what Celery
does after the run, by one that is left after that.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

import pytest
from celery import Task, signals
from celery.backends.base import DisabledBackend
from celery.exceptions import Ignore, Reject, WorkerTerminate

from django_tasklock import TaskLock, current_lock, task_lock
from django_tasklock.backends import get_backend
from django_tasklock.backends.memory import advance
from django_tasklock.celery import parked_messages
from django_tasklock.exceptions import CrashLoop, LockLost, StaleClaim
from django_tasklock.testing import lose
from tests.support.guards import elsewhere
from tests.support.once_app import Message, OnceApp

pytest_plugins = ["tests.support.once_fixtures"]

AGAIN: Any = {"delivery_info": {"redelivered": True}}
FOLLOWS = [signals.task_success, signals.task_failure, signals.task_retry, signals.task_postrun]


def raises(error: Exception) -> Callable[..., Any]:
    def body(*args: Any) -> Any:
        raise error

    return body


def raises_base(*args: Any, **kwargs: Any) -> Any:
    raise WorkerTerminate


def retries(task: Any) -> Any:
    raise task.retry(countdown=0)


def goes_on(task: Any) -> str:
    task.retry(countdown=0, throw=False)
    return "went on"


class Runs:
    """One message, and its deliveries."""

    def __init__(self, app: OnceApp, body: Callable[[Any], Any] = lambda task: "ran", kind: str = "once", **how: Any):
        self.starts = 0

        def counted(task: Any, *args: Any) -> Any:
            self.starts += 1
            return body(task)

        how = {"bind": True, "acks_late": True, "ignore_result": True, "takeovers": 9, **how}
        if kind == "once":
            self.task = app.task(counted, key="a", **how)
        else:
            self.task = app.task(task_lock("a")(counted), base=Task, **how)
        self.app = app

    def publish(self, **options: Any) -> Message:
        self.task.apply_async(**options)
        message = self.app.take()
        assert message is not None
        return message

    def killed(self, message: Message, when: list[Any] | None = None) -> None:
        """A delivery whose process dies between the release of the lock and the acknowledgement."""

        def dies(**details: Any) -> None:
            raise WorkerTerminate

        for signal in when or FOLLOWS:
            signal.connect(dies, weak=False)
        try:
            with pytest.raises(WorkerTerminate):
                self.app.run(message)
        finally:
            for signal in when or FOLLOWS:
                signal.disconnect(dies)


ENDS: list[Any] = [
    (lambda task: "ran", {}),
    (raises(ValueError("codec")), {}),
    (raises(Ignore("no")), {}),
    (raises(CrashLoop("nested")), {"autoretry_for": (Exception,)}),
    (retries, {}),
    (goes_on, {}),
    (lambda task: current_lock().release() and "ran", {}),
]
IDS = ["returns", "fails", "ignores", "is not retried", "retries", "goes on after retry()", "has released its lock"]


@pytest.mark.parametrize(("body", "options"), ENDS, ids=IDS)
@pytest.mark.parametrize("kind", ["once", "locked"])
def test_it_ends(app, kind, body, options):
    runs = Runs(app, body, kind, **options)
    message = runs.publish()
    runs.killed(message)
    assert app.run(message, **AGAIN)[0] == "IGNORED"
    assert runs.starts == 1
    assert get_backend().records() == []


@pytest.mark.parametrize("results", ["ignored by the task", "ignored by the caller", "not kept"])
def test_without_a_result(app, results):
    """As in the tutorial: no result backend, and nobody says that a result is to be ignored."""
    runs = Runs(app, ignore_result=results == "ignored by the task")
    if results == "not kept":
        runs.task.backend = DisabledBackend(app.app)
    message = runs.publish(ignore_result=results == "ignored by the caller")
    runs.killed(message)
    assert app.run(message, **AGAIN)[0] == "IGNORED"
    assert runs.starts == 1


class TestWhatFollows:
    """If a kill may have prevented it, the body runs again: a caller would wait for ever."""

    def test_a_result(self, app):
        runs = Runs(app, raises(ValueError("codec")), ignore_result=False)
        message = runs.publish()
        runs.killed(message, [signals.task_failure])
        assert app.run(message, **AGAIN)[0] == "FAILURE"
        assert app.run(message, **AGAIN)[0] == "IGNORED"
        assert runs.starts == 2

    @pytest.mark.parametrize("how", ["link", "link_error", "chain"])
    def test_another_message(self, app, how, monkeypatch):
        other = app.task(lambda *args: "followed", key="other")
        runs = Runs(app, raises(ValueError("codec")) if how == "link_error" else lambda task: "ran")
        if how == "chain":
            (runs.task.s() | other.si()).apply_async()
            message = app.take()
        else:
            message = runs.publish(**{how: other.si()})
        with monkeypatch.context() as patch:
            patch.setattr(app.app.amqp, "send_task_message", raises_base)
            patch.setattr(app.app.backend, "mark_as_failure", raises_base)
            with pytest.raises(WorkerTerminate):
                app.run(message)
        assert app.run(message, **AGAIN)[0] == ("FAILURE" if how == "link_error" else "SUCCESS")
        assert app.run(message, **AGAIN)[0] == "IGNORED"
        assert runs.starts == 2

    def test_the_next_try_of_autoretry(self, app, monkeypatch):
        """Celery publishes it after the lock of a decorated function is free."""
        runs = Runs(app, raises(ValueError("codec")), "locked", autoretry_for=(ValueError,), retry_backoff=False)
        message = runs.publish()
        with monkeypatch.context() as patch:
            patch.setattr(app.app.amqp, "send_task_message", raises_base)
            with pytest.raises(WorkerTerminate):
                app.run(message)
        assert app.run(message, **AGAIN)[0] == "RETRY"
        assert app.run(message, **AGAIN)[0] == "IGNORED"
        assert runs.starts == 2


class TestWhatHasNotEnded:
    def test_a_requeued_one(self, app):
        runs = Runs(app, raises(Reject("later", requeue=True)))
        message = runs.publish()
        for _ in range(2):
            assert app.run(message, **AGAIN)[0] == "REJECTED"
        assert runs.starts == 2

    def test_one_that_the_worker_ends(self, app):
        runs = Runs(app, raises_base)
        message = runs.publish()
        for _ in range(2):
            with pytest.raises(WorkerTerminate):
                app.run(message, **AGAIN)
        assert runs.starts == 2

    @pytest.mark.parametrize("error", [StaleClaim("overtaken"), LockLost("overtaken")], ids=["row", "lock"])
    def test_one_that_was_overtaken(self, app, error):
        """The other delivery may have died meanwhile."""

        def body(task: Any) -> Any:
            lose("a")
            raise error

        runs = Runs(app, body)
        message = runs.publish()
        for _ in range(2):
            assert app.run(message, **AGAIN)[0] == "FAILURE"
        assert runs.starts == 2

    def test_one_whose_body_is_called_once_more(self, app):
        """By a decorator around the lock that repeats what fails: the worker may die in the second call."""
        errors = [ValueError("first"), WorkerTerminate(), ValueError("second"), None]

        @task_lock("a")
        def locked() -> str:
            if (error := errors.pop(0)) is not None:
                raise error
            return "ran"

        @wraps(locked)
        def persistent() -> str:
            try:
                return locked()
            except ValueError:
                return locked()

        app.task(persistent, base=Task, acks_late=True, ignore_result=True).delay()
        message = app.take()
        with pytest.raises(WorkerTerminate):
            app.run(message)
        assert app.run(message, **AGAIN) == ("SUCCESS", "ran")
        assert app.run(message, **AGAIN)[0] == "IGNORED"


def test_the_mark_stays_while_the_message_may_come_back(app):
    """For as long as the broker may take, an hour where it does not say, and an hour in which all workers are busy."""
    runs = Runs(app)
    message = runs.publish()
    app.run(message)
    advance(2 * 3600 - 1)
    assert app.run(message, **AGAIN)[0] == "IGNORED"
    advance(1)
    assert app.run(message, **AGAIN)[0] == "SUCCESS"


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("word", ["queue", "coalesce"])
def test_it_does_not_wait_behind_others(app, word):
    runs = Runs(app, on_conflict=word)
    message = runs.publish()
    runs.killed(message)
    with TaskLock("a"):
        other = runs.publish()
        assert elsewhere(lambda: app.run(other))[0] == "IGNORED"
        assert elsewhere(lambda: app.run(message, **AGAIN))[0] == "IGNORED"
    assert [one.task_id for one in parked_messages()] == [other.id]
    assert runs.starts == 1
