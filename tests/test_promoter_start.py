"""A worker looks after parked messages only if one of its tasks may park any."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from celery import Celery

from django_tasklock import task_lock
from django_tasklock.celery import OnceTask, install
from django_tasklock.celery.promotion import Promoter


def no_lock() -> None:
    """A task that takes none."""


@pytest.fixture
def started(monkeypatch) -> list[Promoter]:
    """The promoters that were started; none runs."""
    found: list[Promoter] = []
    monkeypatch.setattr(Promoter, "start", lambda promoter: found.append(promoter))
    yield found
    install.end_promoting()


def ready(**options) -> None:
    """A worker with one task is ready."""
    app = Celery("of its own", set_as_current=False)
    function = options.pop("function", no_lock)
    app.task(name="one", shared=False, **options)(function)
    app.finalize()
    install.begin_promoting(SimpleNamespace(app=app))


def test_not_without_locks(started):
    ready()
    assert started == []


@pytest.mark.parametrize("options", [{"base": OnceTask}, {"function": task_lock("name")(no_lock)}])
def test_with_them(started, options):
    ready(**options)
    assert len(started) == 1
