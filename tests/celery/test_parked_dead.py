"""What lies in the table of parked messages and cannot be run holds up nobody behind it, and runs nothing.

A message that no worker takes is dead after some attempts: operators see it, and requeue or discard it. Whoever can
write to the table can neither run code with it, nor have a task run.
"""

from __future__ import annotations

import base64
import json
import pickle
from io import StringIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from celery.signals import task_rejected, task_unknown
from celery.worker import state as worker_state
from django.core.management import CommandError, call_command
from django.db.models import F

from django_tasklock import list_all_task_locks
from django_tasklock.backends import get_backend
from django_tasklock.backends.database.names import key_of
from django_tasklock.celery import parked_messages
from django_tasklock.celery.queue import promoter as promotion
from django_tasklock.celery.queue.promoter import Promoter, promote
from django_tasklock.db.clock import Now
from django_tasklock.models import AuditEntry, ParkedMessage
from django_tasklock.operations import Actor
from django_tasklock.operations.parked.acts import discard_parked, requeue_parked
from django_tasklock.types import AcquireRequest
from tests.support.guards import new_token
from tests.support.once_app import OnceApp, once_app
from tests.support.stores import eventually

pytest_plugins = ["tests.support.once_fixtures"]
pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.filterwarnings("ignore:Call to deprecated setex:DeprecationWarning"),
]
BY = Actor("somebody")


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


def waited_for(app: OnceApp) -> None:
    """Time passes, until a promoter gives up."""
    promoter = Promoter(app.app)
    for _ in range(promotion.MOST_ATTEMPTS + 1):
        age(promotion.LONGEST_PATIENCE + 1)
        promoter.poll()


def dead(app: OnceApp, **options: Any) -> Any:
    """A message whose task is no more, which was waited for long enough."""
    task = parked(app, **options)
    renamed(app, task)
    waited_for(app)
    assert rows("state") == [("dead",)]
    return task


class TestATaskThatIsNotKnown:
    def test_it_does_not_block_the_queue(self, app: OnceApp) -> None:
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
            parked(other)
            assert promote("n", other.app)
            assert other.run() == ("SUCCESS", 0)
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


class Consumer:
    """What of a worker sends the signals."""

    def __init__(self, app: Any) -> None:
        self.app = app


class TestNoWorkerTakesIt:
    """F35: a worker says so by ``task_unknown`` or ``task_rejected``, or nobody consumes its queue."""

    def refuse(self, app: OnceApp, signal: Any) -> None:
        message = app.take()
        assert message is not None
        told = SimpleNamespace(headers=message.headers)
        signal.send(Consumer(app.app), message=told, exc=KeyError(message.task), name="", id=message.id)

    @pytest.mark.parametrize("signal", [task_unknown, task_rejected], ids=["unknown", "rejected"])
    def test_the_line_goes_on_and_it_comes_again_later(self, app: OnceApp, signal: Any) -> None:
        parked(app, 2)
        assert promote("n", app.app)
        self.refuse(app, signal)
        eventually(lambda: rows("state", "attempts") == [("parked", 1), ("parked", 0)])
        assert promote("n", app.app)
        assert app.run() == ("SUCCESS", 1)
        age(promotion.PATIENCE + 1)
        assert promote("n", app.app)
        assert app.run() == ("SUCCESS", 0)
        assert rows() == []

    def test_one_that_was_revoked_is_over(self, app: OnceApp) -> None:
        """The worker that does not know the task never asks."""
        task = parked(app)
        [(task_id,)] = rows("task_id")
        worker_state.revoked.add(task_id)
        try:
            assert promote("n", app.app)
            self.refuse(app, task_unknown)
            eventually(lambda: task.AsyncResult(task_id).state == "REVOKED")
        finally:
            worker_state.revoked.discard(task_id)
        assert rows() == []

    def test_in_the_end_it_is_dead_and_runs_if_it_arrives_after_all(self, app: OnceApp, caplog: Any) -> None:
        """Its queue was only long."""
        parked(app, 2)
        for _ in range(promotion.MOST_ATTEMPTS):
            assert promote("n", app.app)
            [message] = app.all()
            age(promotion.LONGEST_PATIENCE + 1)
        assert promote("n", app.app)  # the next one
        assert rows("state", "attempts") == [("dead", promotion.MOST_ATTEMPTS), ("promoted", 1)]
        assert "no worker took it" in caplog.text
        assert app.run() == ("SUCCESS", 1)
        assert app.run(message) == ("SUCCESS", 0)
        assert rows() == []


class TestOperators:
    def test_the_command_requeues(self, app: OnceApp) -> None:
        app.app.tasks.register(dead(app))
        [(task_id,)] = rows("task_id")

        def said(*words: str) -> str:
            out = StringIO()
            call_command("parked", *words, stdout=out)
            return out.getvalue()

        assert f"{task_id}] dead" in said("--state", "dead")
        assert said("--state", "parked") == ""
        assert json.loads(said("n", "--json"))["messages"][0]["problem"].startswith("this app has no task")
        assert "waits for its lock again" in said("--requeue", task_id, "--reason", "it is back")
        with pytest.raises(CommandError, match="Not done: 1"):
            said("--requeue", task_id)
        assert app.run() == ("SUCCESS", 0)
        assert rows() == []
        assert AuditEntry.objects.values_list("action", "name", "reason").get() == ("requeue", "n", "it is back")

    def test_discard(self, app: OnceApp) -> None:
        task = dead(app)
        [(task_id,)] = rows("task_id")
        assert discard_parked(task_id, by=BY)
        assert rows() == []
        assert task.AsyncResult(task_id).state == "REVOKED"
        assert AuditEntry.objects.get().action == "discard"

    def test_what_cannot_be_done(self, app: OnceApp) -> None:
        parked(app)
        [(task_id,)] = rows("task_id")
        assert "not dead" in requeue_parked(task_id, by=BY).why
        assert "no such" in requeue_parked("x", by=BY).why
        assert "no such" in discard_parked("x", by=BY).why
        assert promote("n", app.app)
        assert "promoted" in discard_parked(task_id, by=BY).why
        assert AuditEntry.objects.count() == 0

    def test_one_that_is_not_signed_is_not_requeued(self, app: OnceApp) -> None:
        dead(app)
        row = ParkedMessage.objects.get()
        ParkedMessage.objects.update(message=row.message + "x")
        assert "SECRET_KEY" in requeue_parked(row.task_id, by=BY).why
        assert rows("state") == [("dead",)]


class Touch:
    """Unpickled, it makes a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.path,)


def insert(text: str, task: str = "a.task") -> None:
    """A row that somebody has forged."""
    ParkedMessage.objects.create(
        key=key_of("n"), name="n", number=0, mode="queue", state="parked", task=task, task_id="forged",
        message=text, parked_at=Now(), changed_at=Now(),
    )  # fmt: skip


class TestForged:
    def test_a_pickle_is_not_opened(self, app: OnceApp, tmp_path: Path) -> None:
        """C21: a worker that accepts JSON only ran what a row said was pickled."""
        mark = tmp_path / "ran"
        body = base64.b64encode(pickle.dumps(Touch(mark))).decode()
        insert(json.dumps({"name": "n", "type": "application/x-python-serialize", "encoding": "binary", "bytes": body}))
        Promoter(app.app).poll()
        assert not mark.exists()
        assert app.all() == []

    def test_nor_is_one_that_is_signed_if_its_serializer_is_no_longer_accepted(self, app: OnceApp) -> None:
        parked(app)
        app.app.conf.accept_content = ["msgpack"]
        assert not promote("n", app.app)
        app.app.conf.accept_content = ["json", "msgpack"]
        assert promote("n", app.app)
        assert len(app.all()) == 1

    @pytest.mark.parametrize("signature", ["", ":" + "x" * 43])
    def test_json_without_a_signature_is_never_promoted(self, app: OnceApp, signature: str) -> None:
        task = app.task(key="n", on_conflict="queue")
        body = json.dumps(dict(task.signature(options={"task_id": "forged"})))
        kept = {"name": "n", "type": "application/json", "encoding": "utf-8", "text": body}
        insert(json.dumps(kept) + signature, task.name)
        assert not promote("n", app.app)
        Promoter(app.app).poll()
        assert app.all() == []

    @pytest.mark.parametrize(
        "change",
        [
            lambda row, kept: kept.update(text=kept["text"].replace("[0]", '["other"]', 1)),
            lambda row, kept: kept.update(type="application/x-yaml"),
            lambda row, kept: kept.update(name="another"),
            lambda row, kept: setattr(row, "task_id", "another"),
            lambda row, kept: setattr(row, "key", key_of("another")),
        ],
        ids=["arguments", "serializer", "name", "task_id", "key"],
    )
    def test_one_that_was_tampered_with(self, app: OnceApp, change: Any) -> None:
        """The signature is over all of it, and its message stays in its own row."""
        parked(app)
        row = ParkedMessage.objects.get()
        text, _, signature = row.message.rpartition(":")
        kept = json.loads(text)
        change(row, kept)
        row.message = f"{json.dumps(kept)}:{signature}"
        row.save()
        assert Promoter(app.app).poll() == 0
        assert app.all() == []

    @pytest.mark.parametrize("text", ["", "[]", '{"name": {}}', '{"name": "held"}'])
    def test_a_row_that_is_no_message_does_not_block_the_queue(self, app: OnceApp, text: str) -> None:
        """Nor does one that names a lock that is held."""
        parked(app)
        get_backend().acquire(AcquireRequest("held", new_token(), 60_000, 60_000, "{}"))
        insert(text)
        assert Promoter(app.app).poll() == 1
        assert len(app.all()) == 1

    def test_operators_are_told(self, app: OnceApp, caplog: Any) -> None:
        insert("{}")
        waited_for(app)
        [one] = parked_messages()
        assert (one.state, one.task_id) == ("dead", "forged")
        assert "signature" in one.problem
        assert [record.levelname for record in caplog.records if "forged" in record.getMessage()] == ["ERROR"]

    def test_a_key_that_was_rotated_is_no_forgery(self, app: OnceApp, settings: Any) -> None:
        parked(app)
        settings.SECRET_KEY_FALLBACKS = [settings.SECRET_KEY]
        settings.SECRET_KEY = "another" * 9
        assert promote("n", app.app)
        assert len(app.all()) == 1
