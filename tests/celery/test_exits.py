"""A body that leaves by ``sys.exit()`` has failed: it is not taken for a worker that shuts down, and begun again."""

from __future__ import annotations

import asyncio
import sys
from argparse import ArgumentParser
from collections.abc import Callable
from typing import Any

import pytest
from asgiref.sync import async_to_sync
from billiard import common
from celery import Task
from celery.exceptions import WorkerShutdown, WorkerTerminate

from django_tasklock import StateGuard, concurrency_limited, model_lock, task_lock
from django_tasklock.backends import get_backend
from django_tasklock.exceptions import BodyExited
from tests.testapp.models import Video

pytest_plugins = ["tests.support.once_fixtures"]

GUARD = StateGuard(claim_from=["uploading"], claim_as="processing", done="ready", failed="failed", retry="uploading")
LATE: dict[str, Any] = {"acks_late": True, "reject_on_worker_lost": True}


class Odd(BaseException):
    pass


class GreenletExit(BaseException):
    __module__ = "greenlet"


def raises(error: BaseException) -> Callable[..., Any]:
    def body(*args: Any) -> Any:
        raise error

    return body


def parses() -> None:
    ArgumentParser().parse_args(["--unknown"])


EXITS: list[Any] = [
    (raises(SystemExit()), "sys.exit(None)"),
    (raises(SystemExit(0)), "sys.exit(0)"),
    (raises(SystemExit("no file")), "sys.exit('no file')"),
    (parses, "sys.exit(2)"),
    (raises(KeyboardInterrupt()), "KeyboardInterrupt"),
    (raises(GeneratorExit()), "GeneratorExit"),
    (raises(asyncio.CancelledError()), "CancelledError"),
    (raises(Odd("odd")), "Odd('odd')"),
    (raises(BaseExceptionGroup("two", [SystemExit(1), ValueError()])), "BaseExceptionGroup"),
]


@pytest.mark.parametrize(("body", "how"), EXITS, ids=[how for _, how in EXITS])
@pytest.mark.parametrize("kind", ["once", "locked", "limited"])
def test_it_fails(app, kind, body, how):
    def leaves() -> None:
        body()

    match kind:
        case "once":
            task = app.task(leaves, key="a", unique="until_finish", **LATE)
        case "locked":
            task = app.task(task_lock("a")(leaves), base=Task, **LATE)
        case "limited":
            task = app.task(concurrency_limited("a", limit=1)(leaves), base=Task, **LATE)
    task.delay()
    state, error = app.run()
    assert (state, type(error)) == ("FAILURE", BodyExited)
    assert how in str(error)
    assert get_backend().records() == []
    assert get_backend().permits.members("a") == []


@pytest.mark.parametrize(("named", "ends"), [(Exception, "FAILURE"), (SystemExit, "RETRY")])
@pytest.mark.parametrize("kind", ["once", "locked"])
def test_it_is_retried_if_that_is_named(app, kind, named, ends):
    how: dict[str, Any] = {"key": "a"} if kind == "once" else {"base": Task}
    body = raises(SystemExit(1))
    task = app.task(body if kind == "once" else task_lock("a")(body), autoretry_for=(named,), max_retries=1, **how)
    task.delay()
    assert app.run()[0] == ends
    if ends == "RETRY":
        state, error = app.run()
        assert (state, type(error)) == ("FAILURE", BodyExited)
    assert app.take() is None


@pytest.mark.parametrize("error", [WorkerShutdown(), WorkerTerminate(), GreenletExit(), "a signal"], ids=repr)
def test_a_worker_that_ends_the_body_is_another_thing(app, error, monkeypatch):
    """Of the pools ``solo``, of greenlets, and prefork, in whose children a handler of signals calls ``sys.exit()``."""

    def terminated() -> None:
        monkeypatch.setattr(common, "_should_have_exited", [True])
        raise SystemExit(-(256 - 15))

    app.task(terminated if error == "a signal" else raises(error), key="a", **LATE).delay()
    with pytest.raises(SystemExit if error == "a signal" else type(error)):
        app.run()
    assert get_backend().records() == []


@pytest.mark.django_db(transaction=True)
class TestTheRow:
    """The row of a helper, too, whatever the task does with the error."""

    def run(self, app: Any, helper: Callable[..., Any]) -> str:
        video = Video.objects.create()

        def body(pk: int) -> str:
            helper(pk)
            return "ran"

        app.task(body, key="a", **LATE).delay(video.pk)
        assert app.run()[0] == "FAILURE"
        video.refresh_from_db()
        return video.status

    def test_is_failed(self, app):
        assert self.run(app, model_lock(Video, "video:{pk}", guard=GUARD)(lambda pk: sys.exit())) == "failed"

    def test_of_a_coroutine_that_is_cancelled_stays_claimable(self, app):
        @model_lock(Video, "video:{pk}", guard=GUARD)
        async def helper(pk: int) -> None:
            await asyncio.sleep(60)

        async def hurries(pk: int) -> None:
            async with asyncio.timeout(0.01):
                await helper(pk)

        assert self.run(app, async_to_sync(hurries)) == "uploading"
