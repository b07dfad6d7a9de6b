"""A task class with a ``__call__`` of its own, which would run the body without its lock, is refused."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import wraps
from typing import Any

import pytest
from celery import Task

from django_tasklock import TaskLockError, current_lock
from django_tasklock.backends.memory import reset
from django_tasklock.celery import OnceTask
from tests.support.guards import MEMORY
from tests.support.once_app import OnceApp, once_app


class Documented(Task):
    """As Celery's user guide has it."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.run(*args, **kwargs)


class First(Documented, OnceTask):
    abstract = True


class Last(OnceTask, Documented):
    """The one of ``OnceTask`` is called first."""

    abstract = True


@pytest.fixture
def app(settings: Any) -> Iterator[OnceApp]:
    settings.TASKLOCK = MEMORY
    reset()
    with once_app() as made:
        yield made


def body() -> Any:
    return current_lock().name  # type: ignore[union-attr]


def test_before_ours(app: OnceApp) -> None:
    """F45: no lock at all, and no word."""
    with pytest.raises(TaskLockError, match=r"a __call__ of its own.*before_start\(\)"):
        app.task(body, base=First, key="a")


def test_after_ours(app: OnceApp) -> None:
    app.task(body, base=Last, key="a").delay()
    assert app.run() == ("SUCCESS", "a")


def test_around_ours(app: OnceApp) -> None:
    """As Sentry does when a task is run for the first time; another task is derived from that one later."""

    def traced(call: Callable[..., Any]) -> Callable[..., Any]:
        return wraps(call)(lambda *args, **kwargs: call(*args, **kwargs))

    patched = type("Patched", (OnceTask,), {"abstract": True, "__call__": traced(OnceTask.__call__)})
    app.task(body, base=patched, key="a").delay()
    assert app.run() == ("SUCCESS", "a")
