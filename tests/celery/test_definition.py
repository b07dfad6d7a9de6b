"""What a task's definition says: whether it is bound, its lock and limits, and that its body is no coroutine."""

from __future__ import annotations

import asyncio
import functools
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import Any

import pytest
from asgiref.sync import async_to_sync
from celery import Celery, Task
from celery.local import Proxy

from django_tasklock import (
    TaskLock,
    TaskLockError,
    concurrency_limited,
    current_lock,
    model_lock,
    rate_limited,
    task_lock,
)
from django_tasklock.backends.memory import reset
from django_tasklock.celery import OnceTask, spread
from django_tasklock.celery.definition import bound_arguments, limiters_of
from django_tasklock.celery.delivery.cleanup import lock_name
from tests.support.guards import MEMORY, ONCE
from tests.support.once_app import OnceApp, once_app
from tests.testapp.models import Video

NAME = "video:{video_id}:{quality}"


@pytest.fixture
def app(settings: Any) -> Iterator[OnceApp]:
    settings.TASKLOCK = MEMORY
    reset()
    with once_app() as made:
        yield made


def passed_on(function: Any) -> Any:
    """Decorate with a wrapper that knows nothing about coroutines."""

    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    return wrapper


def as_it_is(task: Any) -> None:
    """Leave the task as Celery made it."""


def patched_like_sentry(task: Any) -> None:
    """Replace ``run`` on the instance, as Sentry does when the task is run for the first time."""
    task.run = passed_on(task.run)


def bodies() -> dict[str, tuple[bool, Callable[..., Any]]]:
    """Bodies that return the name of their lock, and whether Celery should bind them."""

    def plain(video_id: int, quality: str = "hd") -> Any:
        return current_lock().name  # type: ignore[union-attr]

    def with_self(self: Any, video_id: int, quality: str = "hd") -> Any:
        assert self.request.id
        return current_lock().name  # type: ignore[union-attr]

    def with_task(task: Any, video_id: int, quality: str = "hd") -> Any:
        assert task.request.id
        return current_lock().name  # type: ignore[union-attr]

    return {"plain": (False, plain), "self": (True, with_self), "task": (True, with_task)}


@pytest.mark.parametrize("patch", [as_it_is, patched_like_sentry])
@pytest.mark.parametrize("options", [{}, {"autoretry_for": (ZeroDivisionError,)}], ids=["once", "autoretry"])
@pytest.mark.parametrize("body", ["plain", "self", "task"])
class TestBound:
    """One name, whatever the first parameter is called and whoever has replaced ``run`` on the instance."""

    def test_of_a_decorated_function(self, app: OnceApp, body: str, options: Any, patch: Callable[[Any], None]) -> None:
        bind, function = bodies()[body]
        task = app.task(task_lock(NAME)(function), base=Task, bind=bind, **options)
        patch(task)
        task.delay(42, "sd")
        assert app.run() == ("SUCCESS", "video:42:sd")
        assert task.lock.name(42, "sd") == task.lock.name(video_id=42, quality="sd") == "video:42:sd"
        with TaskLock("video:42:sd"):
            assert task.lock.is_locked(42, "sd")
        assert lock_name(task, {}, (42, "sd"), {}) == "video:42:sd"  # what is cleaned up after a killed process

    def test_of_a_callable_that_makes_the_name(
        self, app: OnceApp, body: str, options: Any, patch: Callable[[Any], None]
    ) -> None:
        bind, function = bodies()[body]

        def from_all(*args: Any) -> str:
            return f"video:{args[-1]}"

        task = app.task(task_lock(from_all)(function), base=Task, bind=bind, **options)
        patch(task)
        task.delay(42)
        assert app.run() == ("SUCCESS", "video:42")
        assert task.lock.name(42) == "video:42"

    @pytest.mark.parametrize("key", [NAME, "video:{0}:{1}", None])
    def test_of_a_once_task(
        self, app: OnceApp, body: str, options: Any, patch: Callable[[Any], None], key: str | None
    ) -> None:
        bind, function = bodies()[body]
        task = app.task(function, bind=bind, key=key, **options)
        before = task.lock_name(42, "sd")
        assert key is None or before == "video:42:sd"
        patch(task)
        task.delay(42, "sd")
        message = app.take()
        assert message is not None
        assert message.key == task.lock_name(42, quality="sd") == task.lock.name(42, "sd") == before
        assert app.run(message) == ("SUCCESS", before)

    def test_of_limits(self, app: OnceApp, body: str, options: Any, patch: Callable[[Any], None]) -> None:
        bind, function = bodies()[body]
        limited = concurrency_limited("encode:{quality}", 2)(rate_limited("api", "100/s")(function))
        task = app.task(limited, base=Task, bind=bind, **options)
        patch(task)
        (permit,) = limiters_of(task)
        assert permit.template.name(bound_arguments(task, (42, "sd")), {}) == "encode:sd"


class TestNumbers:
    """``{0}`` is the first argument after ``self``."""

    def test_of_a_bound_task(self, app: OnceApp) -> None:
        _, function = bodies()["self"]
        task = app.task(task_lock("video:{0}:{1}")(function), base=Task, bind=True)
        task.delay(42, quality="sd")
        assert app.run() == ("SUCCESS", "video:42:sd")
        assert task.lock.name(42, "sd") == lock_name(task, {}, (42, "sd"), {}) == "video:42:sd"

    @pytest.mark.parametrize(
        "decorate", [task_lock("a:{0}"), task_lock(["b", "a:{0}"]), concurrency_limited("a:{0}", 2)]
    )
    def test_where_it_would_be_the_task_it_is_refused(self, app: OnceApp, decorate: Any) -> None:
        _, function = bodies()["task"]
        with pytest.raises(TaskLockError, match=r"\{0\} in 'a:\{0\}' is 'task', which is the task itself"):
            app.task(decorate(function), base=Task, bind=True)


class TestAcknowledgement:
    """A message comes back if its worker dies, unless the task says something else."""

    @pytest.mark.parametrize(
        ("options", "late", "lost"),
        [
            ({}, True, True),
            ({"acks_late": False}, False, True),
            ({"acks_late": None, "reject_on_worker_lost": None}, False, False),
        ],
        ids=["by default", "early", "by the settings"],
    )
    def test_of_a_once_task(self, app: OnceApp, options: Any, late: bool, lost: bool) -> None:
        app.app.conf.update(task_acks_late=False, task_reject_on_worker_lost=False)
        task = app.task(**options)
        assert (task.acks_late, task.reject_on_worker_lost) == (late, lost)
        app.app.conf.update(task_acks_late=True, task_reject_on_worker_lost=True)
        task = app.task(**options)
        assert (task.acks_late, task.reject_on_worker_lost) == (options != {"acks_late": False}, True)

    def test_celerys_own_tasks_follow_the_settings(self, settings: Any) -> None:
        made = Celery("tests.builtins", task_cls=OnceTask, set_as_current=False)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Task name .* is already registered")
            assert isinstance(made.tasks["celery.map"], OnceTask)
        assert not made.tasks["celery.map"].acks_late
        assert not made.tasks["celery.map"].reject_on_worker_lost
        made.close()


def test_a_lock_without_parentheses_above_a_task(app: OnceApp) -> None:
    with pytest.raises(TaskLockError, match=r"write @task_lock\('report:\{day\}'\).* below the task decorator"):
        task_lock(app.task(base=Task))  # type: ignore[arg-type]


def test_a_task_as_celery_hands_it_out(app: OnceApp) -> None:
    """``@shared_task`` returns a proxy, whose own class is not the task's."""
    bind, function = bodies()["self"]
    task = app.task(rate_limited("api", "100/s", tenant="{0}", tenants="100/s")(function), base=Task, bind=bind)
    sent = spread(Proxy(lambda: task), [(42,), (43,)])
    assert len(sent) == 2


def test_a_class_with_a_run_that_is_patched(app: OnceApp) -> None:
    class Encode(OnceTask):
        name = "definition.encode"
        key = "video:{video_id}"

        def run(this, video_id: int) -> Any:
            return current_lock().name  # type: ignore[union-attr]

    task = app.app.register_task(Encode())
    patched_like_sentry(task)
    assert task.lock.name(42) == task.lock_name(video_id=42) == "video:42"
    task.delay(42)
    assert app.run() == ("SUCCESS", "video:42")


class Awaited:
    """An awaitable of somebody's own."""

    def __await__(self) -> Any:
        yield


async def work(video_id: int) -> str:
    pytest.fail("it ran without its lock")


class Work:
    async def __call__(self, video_id: int) -> str:
        return await work(video_id)


def named(function: Any) -> Any:
    """Give an object what Celery asks a function for."""
    function.__name__ = function.__qualname__ = "work"
    function.__annotations__ = {}
    return function


FORMS = {
    "async def": lambda: work,
    "partial": lambda: named(functools.partial(work)),
    "wraps": lambda: functools.update_wrapper(functools.partial(work), work),
    "object": lambda: named(Work()),
    "partial of an object": lambda: named(functools.partial(Work())),
}
DECORATORS: dict[str, Callable[[Any], Any]] = {
    "task_lock": task_lock("a"),
    "model_lock": model_lock(Video, "a", pk="video_id", guard=ONCE),
    "concurrency_limited": concurrency_limited("a", 3),
    "rate_limited": rate_limited("a", "100/s"),
}


class TestCoroutines:
    """A body that is not over when it returns: the lock would not cover it, and the row would be done already."""

    @pytest.mark.parametrize("form", ["async def", "object"])  # Celery itself makes no task of a partial
    def test_a_once_task_is_refused_when_it_is_bound(self, app: OnceApp, form: str) -> None:
        with pytest.raises(TaskLockError, match=r"task once\.task.* coroutine function.*async_to_sync"):
            app.task(FORMS[form]())

    @pytest.mark.parametrize("decorator", DECORATORS)
    @pytest.mark.parametrize("form", FORMS)
    def test_so_is_a_task_with_a_decorated_one(self, app: OnceApp, decorator: str, form: str) -> None:
        decorated = DECORATORS[decorator](FORMS[form]())
        with pytest.raises(TaskLockError, match=r"task once\.task.* coroutine function.*async_to_sync"):
            app.task(decorated, base=Task)

    def test_a_task_without_our_decorators_is_none_of_our_business(self, app: OnceApp) -> None:
        assert app.task(work, base=Task).name in app.app.tasks

    @pytest.mark.parametrize("base", [Task, OnceTask])
    def test_as_the_error_says_it_runs(self, app: OnceApp, base: Any) -> None:
        @task_lock("inner:{video_id}")
        async def convert(video_id: int) -> Any:
            return current_lock().name  # type: ignore[union-attr]

        app.task(lambda video_id: async_to_sync(convert)(video_id), base=base).delay(42)
        assert app.run() == ("SUCCESS", "inner:42")

        def run_it(function: Any) -> Any:  # another way, which many projects have
            return functools.wraps(function)(lambda *args: asyncio.run(function(*args)))

        app.task(run_it(convert), base=base).delay(42)
        assert app.run() == ("SUCCESS", "inner:42")


def generator(video_id: int) -> Iterator[int]:
    yield video_id


class Rows:
    def __call__(self, video_id: int) -> Iterator[int]:
        yield video_id


UNFINISHED: dict[str, Callable[[int], Any]] = {
    "coroutine": passed_on(work),
    "coroutine of an object": passed_on(named(Work())),
    "partial": passed_on(named(functools.partial(Work()))),
    "awaitable": lambda video_id: Awaited(),
    "generator": passed_on(generator),
    "generator of a partial": passed_on(named(functools.partial(generator))),
    "generator of an object": passed_on(named(Rows())),
    "future": lambda video_id: Future(),
}


@pytest.mark.database
@pytest.mark.django_db
@pytest.mark.parametrize("unfinished", UNFINISHED)
class TestUnfinished:
    """What only a call can show fails that call, before its row is marked as done."""

    def test_a_once_task(self, app: OnceApp, unfinished: str) -> None:
        video = Video.objects.create(status="uploading")
        function = UNFINISHED[unfinished]
        task = app.task(lambda video_id: None, guard=ONCE, model=Video, pk="video_id", ignore_result=True)
        type(task).run = staticmethod(function)
        task.delay(video.pk)
        state, error = app.run()
        assert (state, type(error)) == ("FAILURE", TaskLockError)
        video.refresh_from_db()
        assert video.status == "failed"

    @pytest.mark.parametrize("base", [None, Task])
    def test_a_decorated_function(self, app: OnceApp, unfinished: str, base: Any) -> None:
        video = Video.objects.create(status="uploading")
        locked = model_lock(Video, "video:{video_id}", pk="video_id", guard=ONCE)(UNFINISHED[unfinished])
        if base is None:
            with pytest.raises(TaskLockError):
                locked(video.pk)
        else:
            app.task(named(locked), base=base, ignore_result=True).delay(video.pk)
            assert app.run()[0] == "FAILURE"
        video.refresh_from_db()
        assert video.status == "failed"


@pytest.mark.database
@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("made", [lambda: work(42), Awaited, Future], ids=["coroutine", "awaitable", "future"])
def test_a_decorated_coroutine_function(settings: Any, made: Callable[[], Any]) -> None:
    settings.TASKLOCK = MEMORY
    video = Video.objects.create(status="uploading")

    @model_lock(Video, "video:{video_id}", pk="video_id", guard=ONCE)
    async def forgets_to_await(video_id: int) -> Any:
        return made()

    with pytest.raises(TaskLockError, match="forgets_to_await returned a"):
        async_to_sync(forgets_to_await)(video.pk)
    video.refresh_from_db()
    assert video.status == "failed"
