"""A worker looks after parked messages only if one of its tasks may park any."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from celery import Task

from django_tasklock import task_lock
from django_tasklock.celery import OnceTask, receivers as install
from django_tasklock.celery.queue.promoter import Promoter


def no_lock() -> None:
    """A task that takes none."""


@pytest.fixture
def started(monkeypatch) -> list[Promoter]:
    """The promoters that were started; none runs."""
    found: list[Promoter] = []
    monkeypatch.setattr(Promoter, "start", lambda promoter: found.append(promoter))
    yield found
    install.stop_promoting()


def ready(task: object) -> None:
    """A worker with one task is ready."""
    app = SimpleNamespace(tasks={"one": task})
    install.start_promoting(SimpleNamespace(app=app))


def made(base: type[Task], run: Callable[..., Any] = no_lock) -> Task:
    """A task of its own class: not one that every app of this process gets."""
    return type("One", (base,), {"name": "one", "run": staticmethod(run)})()


def test_not_without_locks(started):
    ready(made(Task))
    assert started == []


@pytest.mark.parametrize("task", [made(OnceTask), made(Task, task_lock("name")(no_lock))], ids=["once", "lock"])
def test_with_them(started, task):
    ready(task)
    assert len(started) == 1
