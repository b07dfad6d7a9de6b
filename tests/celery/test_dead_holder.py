"""A lock whose holder's process is known to be dead: the next message takes it, whoever's it was."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from celery import Task

from django_tasklock import TaskLock, task_lock
from django_tasklock.backends import get_backend
from django_tasklock.backends.memory import reset
from django_tasklock.celery import parked_messages
from django_tasklock.celery.queue.promoter import promote
from django_tasklock.host import Task as Known
from django_tasklock.locks.holder import holder_json
from django_tasklock.types import AcquireRequest, Grant
from tests.support.guards import MEMORY, elsewhere, new_token
from tests.support.once_app import OnceApp, once_app


@pytest.fixture
def app(settings: Any) -> Iterator[OnceApp]:
    settings.TASKLOCK = MEMORY
    reset()
    with once_app() as made:
        yield made


def held_by_the_dead(task_id: str = "other", *, ttl: int = 60_000, hold: int = 3_600_000, **known: Any) -> None:
    """By a process of this machine that has ended."""
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    holder = {**json.loads(holder_json(Known("a.task", task_id))), "pid": process.pid, "boot": "gone", **known}
    assert isinstance(get_backend().acquire(AcquireRequest("a", new_token(), ttl, hold, json.dumps(holder))), Grant)


@pytest.mark.parametrize("word", ["skip", "reject", "raise", "retry", "queue", "coalesce", "wait"])
@pytest.mark.django_db(transaction=True)
def test_it_is_taken_over(app: OnceApp, word: str) -> None:
    """F44: new messages were skipped or rejected for a minute."""
    app.task(key="a", on_conflict=word).delay()
    held_by_the_dead()
    assert app.run() == ("SUCCESS", "ran")
    assert get_backend().records() == []


def test_for_a_decorated_task(app: OnceApp) -> None:
    @task_lock("a", on_conflict="skip")
    def body() -> str:
        return "ran"

    app.task(body, base=Task).delay()
    held_by_the_dead()
    assert app.run() == ("SUCCESS", "ran")


@pytest.mark.parametrize(
    "known",
    [{"proc": "another:1"}, {"ttl": 3_600_000}],
    ids=["on another machine", "without a lease"],
)
def test_what_may_be_meant_is_left_alone(app: OnceApp, known: Any) -> None:
    app.task(key="a", on_conflict="skip").delay()
    held_by_the_dead(**known)
    assert app.run()[1]["status"] == "skipped"


@pytest.mark.django_db(transaction=True)
def test_what_is_parked_behind_it_goes_on(app: OnceApp) -> None:
    app.task(key="a", on_conflict="queue").delay()
    with TaskLock("a"):
        assert elsewhere(app.run)[0] == "IGNORED"
    held_by_the_dead()
    assert promote("a", app.app)
    assert app.run() == ("SUCCESS", "ran")
    assert parked_messages() == []


@pytest.mark.django_db(transaction=True)
def test_a_dead_one_that_comes_back_and_was_replaced(app: OnceApp) -> None:
    """F44: it left its lock for a lease, and the newer one behind it."""
    task = app.task(key="a", on_conflict="coalesce", acks_late=True)
    task.delay()
    older = app.take()
    assert older is not None
    task.delay()
    with TaskLock("a"):
        assert elsewhere(app.run)[0] == "IGNORED"
    held_by_the_dead(older.id, task=task.name)
    state, value = app.run(older, delivery_info={"redelivered": True})
    assert (state, value["reason"]) == ("SUCCESS", "coalesced")
    assert app.run() == ("SUCCESS", "ran")
    assert get_backend().records() == []
