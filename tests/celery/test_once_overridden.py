"""A mixin with a ``__call__`` of its own in front of ``OnceTask``: the lock is taken all the same."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from celery import Task

from django_tasklock import TaskLock, TaskLockAcquireError, current_lock
from django_tasklock.backends.memory import reset
from django_tasklock.celery import OnceTask
from tests.support.current import here
from tests.support.guards import MEMORY, elsewhere
from tests.support.once_app import OnceApp, once_app

SEEN: list[str] = []


class Documented(Task):
    """As Celery's user guide has it."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        SEEN.append("before")
        return self.run(*args, **kwargs)


class Cooperative(Task):
    """Hands on."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        SEEN.append("before")
        return super().__call__(*args, **kwargs)


class FirstDocumented(Documented, OnceTask):
    abstract = True


class FirstCooperative(Cooperative, OnceTask):
    abstract = True


BOTH = pytest.mark.parametrize("base", [FirstDocumented, FirstCooperative])
BOUND = pytest.mark.parametrize("bind", [False, True], ids=["plain", "bound"])


@pytest.fixture
def app(settings: Any) -> Iterator[OnceApp]:
    settings.TASKLOCK = MEMORY
    reset()
    SEEN.clear()
    with once_app() as made:
        yield made


def task_of(app: OnceApp, base: Any, bind: bool, **options: Any) -> Any:
    def plain(x: int) -> Any:
        lock = here(current_lock)
        return None if lock is None else lock.name

    def bound(self: Any, x: int) -> Any:
        return plain(x)

    return app.task(bound if bind else plain, base=base, bind=bind, key="n:{x}", **options)


@BOTH
@BOUND
class TestEitherWay:
    def test_it_is_locked(self, app: OnceApp, base: Any, bind: bool) -> None:
        """F45: no lock at all, and no word."""
        task_of(app, base, bind).delay(1)
        assert app.run() == ("SUCCESS", "n:1")
        assert SEEN == ["before"]

    def test_busy(self, app: OnceApp, base: Any, bind: bool) -> None:
        task_of(app, base, bind, on_conflict="raise").delay(1)
        with TaskLock("n:1"):
            state, error = elsewhere(app.run)
        assert (state, type(error)) == ("FAILURE", TaskLockAcquireError)

    def test_called_directly(self, app: OnceApp, base: Any, bind: bool) -> None:
        task = task_of(app, base, bind, on_conflict="raise")
        assert task(1) == "n:1"
        with TaskLock("n:1"), pytest.raises(TaskLockAcquireError):
            elsewhere(lambda: task(1))

    def test_with_autoretry(self, app: OnceApp, base: Any, bind: bool) -> None:
        task_of(app, base, bind, autoretry_for=(ZeroDivisionError,)).delay(1)
        assert app.run() == ("SUCCESS", "n:1")


@BOTH
@pytest.mark.parametrize("outside", [FirstDocumented, FirstCooperative, OnceTask])
def test_a_task_that_calls_another(app: OnceApp, base: Any, outside: Any) -> None:
    inner = task_of(app, base, bind=False)
    outer = app.task(lambda: [current_lock().name, inner(2)], base=outside, key="outer")  # type: ignore[union-attr]
    outer.delay()
    assert app.run() == ("SUCCESS", ["outer", "n:2"])


@BOTH
def test_a_task_that_calls_itself(app: OnceApp, base: Any) -> None:
    def body(self: Any, deep: int) -> Any:
        lock = here(current_lock)
        return [lock and lock.name, *(self(deep - 1) if deep else [])]

    app.task(body, base=base, bind=True, key="n:{deep}").delay(2)
    assert app.run() == ("SUCCESS", ["n:2", "n:1", "n:0"])


@BOTH
def test_a_class_with_a_run_of_its_own(app: OnceApp, base: Any) -> None:
    class Own(base):  # type: ignore[misc]
        name = f"own.{base.__name__}"
        key = "own:{x}"

        def run(self, x: int) -> Any:
            lock = here(current_lock)
            return lock and lock.name

    task = app.app.register_task(Own())
    task.delay(3)
    assert app.run() == ("SUCCESS", "own:3")


def test_a_class_that_is_derived_from_a_task(app: OnceApp) -> None:
    class Parent(FirstDocumented):
        name = "own.parent"
        key = "parent"

        def run(self) -> Any:
            lock = here(current_lock)
            return lock and lock.name

    app.app.register_task(Parent())

    class Child(Parent):
        name = "own.child"
        key = "child"

    app.app.register_task(Child()).delay()
    assert app.run() == ("SUCCESS", "child")
