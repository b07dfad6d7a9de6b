"""A parked message that no worker takes holds up nobody behind it: after some attempts it is dead.

Operators see it, and requeue or discard it.
"""

from __future__ import annotations

import json
from io import StringIO
from types import SimpleNamespace
from typing import Any

import pytest
from celery.signals import task_rejected, task_unknown
from celery.worker import state as worker_state
from django.core.management import CommandError, call_command
from django.db.models import F

from django_tasklock import list_all_task_locks
from django_tasklock.backends import get_backend
from django_tasklock.celery import parked_messages
from django_tasklock.celery.queue import promoter as promotion
from django_tasklock.celery.queue.promoter import Promoter, promote
from django_tasklock.models import AuditEntry, ParkedMessage
from django_tasklock.operations import Actor
from django_tasklock.operations.parked.acts import discard_parked, requeue_parked
from django_tasklock.types import AcquireRequest
from tests.support.guards import new_token
from tests.support.once_app import OnceApp, once_app
from tests.support.stores import eventually

pytest_plugins = ["tests.support.once_fixtures"]
pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(autouse=True)
def _current(app: OnceApp) -> None:
    """Operators are not asked which app is meant."""
    app.app.set_current()


class Held:
    """Somebody has the lock ``n``."""

    def __enter__(self) -> None:
        self.token = new_token()
        get_backend().acquire(AcquireRequest("n", self.token, 60_000, 60_000, "{}"))

    def __exit__(self, *how: object) -> None:
        get_backend().release("n", self.token)


def parked(app: OnceApp, number: int = 1, **options: Any) -> Any:
    """A task, and so many of its messages parked in the ordinary way; the lock is free."""
    task = app.task(lambda x=0: x, key="n", on_conflict="queue", **options)
    with Held():
        for one in range(number):
            task.delay(one)
            assert app.run()[0] == "IGNORED"
    return task


def renamed(app: OnceApp, task: Any) -> None:
    """The next release of the code calls it something else."""
    del app.app.tasks[task.name]


def rows(*fields: str) -> list[Any]:
    return list(ParkedMessage.objects.order_by("number").values_list(*fields))


def age(seconds: float) -> None:
    ParkedMessage.objects.update(changed_at=F("changed_at") - round(seconds * 1000))


def dead(app: OnceApp, **options: Any) -> Any:
    """A message whose task is no more, which was waited for long enough."""
    task = parked(app, **options)
    renamed(app, task)
    waited_for(app)
    assert rows("state") == [("dead",)]
    return task


def waited_for(app: OnceApp) -> None:
    """Time passes, until a promoter gives up."""
    promoter = Promoter(app.app)
    for _ in range(promotion.MOST_ATTEMPTS + 1):
        age(promotion.LONGEST_PATIENCE + 1)
        promoter.poll()


class TestATaskThatIsNotKnown:
    def test_an_unknown_task_does_not_block_the_queue(self, app: OnceApp) -> None:
        """F35: it was sent for ever, and whoever waited behind it waited for ever."""
        gone = parked(app, 3)
        here = parked(app)
        renamed(app, gone)
        assert promote("n", app.app)
        message = app.take()
        assert message is not None
        assert message.task == here.name
        assert app.run(message) == ("SUCCESS", 0)

    def test_another_apps_workers_take_it(self, app: OnceApp) -> None:
        """Two apps on one database: each puts back its own."""
        theirs = parked(app)
        with once_app() as other:
            ours = parked(other)
            assert promote("n", other.app)
            message = other.take()
            assert message is not None
            assert message.task == ours.name
            assert other.run(message) == ("SUCCESS", 0)
            assert app.all() == []
        assert promote("n", app.app)
        assert [message.task for message in app.all()] == [theirs.name]

    def test_after_a_while_it_is_dead(self, app: OnceApp, caplog: Any) -> None:
        """All of them at once: there may be thousands, of a task that was renamed."""
        task = parked(app, 3)
        renamed(app, task)
        promoter = Promoter(app.app)
        promoter.poll()
        assert rows("state", "attempts") == [("parked", 0)] * 3
        age(promotion.PATIENCE + 1)
        for _ in range(2):
            promoter.poll()
        assert rows("state", "attempts") == [("parked", 1)] * 3
        waited_for(app)
        assert rows("state", "place") == [("dead", None)] * 3
        assert parked_messages("n")[0].problem == f"this app has no task {task.name!r}"
        assert len([record for record in caplog.records if record.levelname == "ERROR"]) == 3

    def test_not_while_its_lock_is_held(self, app: OnceApp) -> None:
        """It is nobody's turn, however long somebody works."""
        renamed(app, parked(app))
        with Held():
            waited_for(app)
        assert rows("state", "attempts") == [("parked", 0)]

    def test_unique_is_free(self, app: OnceApp) -> None:
        """F35: it answered with the dead message's result for an hour."""
        task = dead(app, unique="until_finish")
        assert [one for one in list_all_task_locks() if one.name.startswith(f"unique:{task.name}:")] == []
        app.app.tasks.register(task)
        assert task.delay(5).id == app.take().id  # type: ignore[union-attr]


class Consumer:
    """What of a worker sends the signals."""

    def __init__(self, app: Any) -> None:
        self.app = app


class TestAWorkerSaysSo:
    """F35: ``task_unknown`` and ``task_rejected``."""

    def tell(self, app: OnceApp, signal: Any) -> None:
        message = app.take()
        assert message is not None
        told = SimpleNamespace(headers=message.headers)
        signal.send(Consumer(app.app), message=told, exc=KeyError(message.task), name="", id=message.id)

    @pytest.mark.parametrize("signal", [task_unknown, task_rejected], ids=["unknown", "rejected"])
    def test_the_line_goes_on_and_it_comes_again_later(self, app: OnceApp, signal: Any) -> None:
        parked(app, 2)
        assert promote("n", app.app)
        self.tell(app, signal)
        eventually(lambda: rows("state", "attempts") == [("parked", 1), ("parked", 0)])
        assert promote("n", app.app)
        assert app.run() == ("SUCCESS", 1)
        age(promotion.PATIENCE + 1)
        assert promote("n", app.app)
        assert app.run() == ("SUCCESS", 0)
        assert rows() == []

    def test_in_the_end_it_is_dead(self, app: OnceApp) -> None:
        parked(app)
        for attempt in range(1, promotion.MOST_ATTEMPTS + 1):
            assert promote("n", app.app)
            self.tell(app, task_unknown)
            eventually(lambda attempt=attempt: rows("state", "attempts") == [("parked", attempt)])
            age(1000)
        assert not promote("n", app.app)
        assert rows("state") == [("dead",)]

    def test_one_that_was_revoked_is_over(self, app: OnceApp) -> None:
        """F35: the docs say so; the worker that does not know the task never asks."""
        task = parked(app)
        [(task_id,)] = rows("task_id")
        worker_state.revoked.add(task_id)
        try:
            assert promote("n", app.app)
            self.tell(app, task_unknown)
            eventually(lambda: task.AsyncResult(task_id).state == "REVOKED")
        finally:
            worker_state.revoked.discard(task_id)
        assert rows() == []


class TestItNeverArrives:
    def test_an_end_of_attempts(self, app: OnceApp, caplog: Any) -> None:
        """F35: nobody consumes its queue, or its worker drops it without a word."""
        parked(app, 2)
        for _ in range(promotion.MOST_ATTEMPTS):
            assert promote("n", app.app)
            app.all()
            age(promotion.LONGEST_PATIENCE + 1)
        assert promote("n", app.app)  # the next one
        assert rows("state", "attempts") == [("dead", promotion.MOST_ATTEMPTS), ("promoted", 1)]
        assert "no worker took it" in caplog.text
        assert app.run() == ("SUCCESS", 1)

    def test_it_arrives_after_all(self, app: OnceApp, monkeypatch: Any) -> None:
        """Its queue was only long."""
        parked(app)
        monkeypatch.setattr(promotion, "MOST_ATTEMPTS", 1)
        assert promote("n", app.app)
        age(promotion.LONGEST_PATIENCE)
        assert not promote("n", app.app)
        assert rows("state") == [("dead",)]
        assert app.run() == ("SUCCESS", 0)
        assert rows() == []


class TestOperators:
    BY = Actor("somebody")

    def test_requeue(self, app: OnceApp) -> None:
        task = dead(app)
        app.app.tasks.register(task)
        [(task_id,)] = rows("task_id")
        result = requeue_parked(task_id, by=self.BY, reason="it is back")
        assert (bool(result), str(result)) == (True, f"Message {task_id} waits for its lock again.")
        assert app.run() == ("SUCCESS", 0)
        assert rows() == []
        assert AuditEntry.objects.values_list("action", "name", "reason").get() == ("requeue", "n", "it is back")

    def test_discard(self, app: OnceApp) -> None:
        task = dead(app)
        [(task_id,)] = rows("task_id")
        assert discard_parked(task_id, by=self.BY)
        assert rows() == []
        assert task.AsyncResult(task_id).state == "REVOKED"
        assert AuditEntry.objects.get().action == "discard"

    def test_what_cannot_be_done(self, app: OnceApp) -> None:
        parked(app)
        [(task_id,)] = rows("task_id")
        assert "not dead" in requeue_parked(task_id, by=self.BY).why
        assert "no such" in requeue_parked("x", by=self.BY).why
        assert "no such" in discard_parked("x", by=self.BY).why
        assert promote("n", app.app)
        assert "promoted" in discard_parked(task_id, by=self.BY).why
        assert AuditEntry.objects.count() == 0

    def test_one_that_is_not_signed_is_not_requeued(self, app: OnceApp) -> None:
        dead(app)
        row = ParkedMessage.objects.get()
        ParkedMessage.objects.update(message=row.message + "x")
        result = requeue_parked(row.task_id, by=self.BY)
        assert not result
        assert "SECRET_KEY" in result.why
        assert rows("state") == [("dead",)]

    def test_the_command(self, app: OnceApp) -> None:
        task = dead(app)
        app.app.tasks.register(task)
        [(task_id,)] = rows("task_id")

        def said(*words: str) -> str:
            out = StringIO()
            call_command("parked", *words, stdout=out)
            return out.getvalue()

        assert f"{task_id}] dead" in said("--state", "dead")
        assert said("--state", "parked") == ""
        assert json.loads(said("n", "--json"))["messages"][0]["problem"].startswith("this app has no task")
        assert "waits for its lock again" in said("--requeue", task_id, "--reason", "why not")
        with pytest.raises(CommandError, match="Not done: 1"):
            said("--requeue", task_id)
        assert AuditEntry.objects.get().reason == "why not"
