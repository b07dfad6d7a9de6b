"""Whoever can write to the table of parked messages can neither run code with it, nor have a task run.

Nor hold up the messages of others.
"""

from __future__ import annotations

import base64
import json
import pickle
from pathlib import Path
from typing import Any

import pytest

from django_tasklock.backends import get_backend
from django_tasklock.backends.database.names import key_of
from django_tasklock.celery import parked_messages
from django_tasklock.celery.queue import promoter as promotion
from django_tasklock.celery.queue.promoter import Promoter, promote
from django_tasklock.db.clock import Now
from django_tasklock.models import ParkedMessage
from django_tasklock.types import AcquireRequest
from tests.support.guards import new_token
from tests.support.once_app import OnceApp

pytest_plugins = ["tests.support.once_fixtures"]
pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.filterwarnings("ignore:Call to deprecated setex:DeprecationWarning"),
]


class Touch:
    """Unpickled, it makes a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.path,)


def insert(text: str, task: str = "a.task", task_id: str = "forged", name: str = "n") -> None:
    ParkedMessage.objects.create(
        key=key_of(name), name=name, number=1, mode="queue", state="parked", task=task, task_id=task_id,
        message=text, parked_at=Now(), changed_at=Now(),
    )  # fmt: skip


def body_of(task: Any, task_id: str) -> str:
    return json.dumps(dict(task.signature(options={"task_id": task_id})))


def parked(app: OnceApp) -> Any:
    """A task, one message of which is parked in the ordinary way."""
    task = app.task(key="n", on_conflict="queue")
    token = new_token()
    get_backend().acquire(AcquireRequest("n", token, 60_000, 60_000, "{}"))
    task.delay()
    assert app.run()[0] == "IGNORED"
    get_backend().release("n", token)
    assert [one.name for one in parked_messages()] == ["n"]
    return task


def tampered(change: Any) -> None:
    row = ParkedMessage.objects.get()
    text, _, signature = row.message.rpartition(":")
    kept = json.loads(text)
    change(row, kept)
    row.message = f"{json.dumps(kept)}:{signature}"
    row.save()


class TestForged:
    def test_a_pickle_is_not_opened(self, app: OnceApp, tmp_path: Path) -> None:
        """C21: a worker that accepts JSON only ran what a row said was pickled."""
        mark = tmp_path / "ran"
        body = base64.b64encode(pickle.dumps(Touch(mark))).decode()
        kept = {"name": "n", "type": "application/x-python-serialize", "encoding": "binary", "bytes": body}
        insert(json.dumps(kept))
        Promoter(app.app).poll()
        promote("n", app.app)
        assert not mark.exists()
        assert app.all() == []

    def test_not_even_one_that_is_signed(self, app: OnceApp) -> None:
        """It was parked before the project stopped accepting its serializer."""
        parked(app)
        app.app.conf.accept_content = ["msgpack"]
        assert not promote("n", app.app)
        assert app.all() == []
        app.app.conf.accept_content = ["json", "msgpack"]
        assert promote("n", app.app)
        assert len(app.all()) == 1

    @pytest.mark.parametrize("signature", ["", ":" + "x" * 43])
    def test_json_without_a_signature_is_never_promoted(self, app: OnceApp, signature: Any) -> None:
        task = app.task(key="n", on_conflict="queue")
        body = body_of(task, "forged")
        kept = {"name": "n", "type": "application/json", "encoding": "utf-8", "text": body}
        insert(json.dumps(kept) + signature, task.name)
        assert not promote("n", app.app)
        Promoter(app.app).poll()
        assert app.all() == []

    @pytest.mark.parametrize(
        "change",
        [
            lambda row, kept: kept.update(text=kept["text"].replace("[]", '["other"]', 1)),
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
        tampered(change)
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
        insert("{}", task_id="forged")
        promoter = Promoter(app.app)
        for _ in range(promotion.MOST_ATTEMPTS + 1):
            ParkedMessage.objects.update(changed_at=0)
            promoter.poll()
        [one] = parked_messages()
        assert (one.state, one.task_id) == ("dead", "forged")
        assert "signature" in one.problem
        assert [record.levelname for record in caplog.records if "forged" in record.getMessage()] == ["ERROR"]


class TestKeys:
    def test_a_key_that_was_rotated(self, app: OnceApp, settings: Any) -> None:
        parked(app)
        settings.SECRET_KEY_FALLBACKS = [settings.SECRET_KEY]
        settings.SECRET_KEY = "another" * 9
        assert promote("n", app.app)
        assert len(app.all()) == 1
