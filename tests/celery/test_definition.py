"""A task's lock has one name however its body is written or patched, and a body that Celery cannot await is refused."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from asgiref.sync import async_to_sync
from celery import Celery, Task
from celery.local import Proxy

from django_tasklock import (
    TaskLockError,
    concurrency_limited,
    current_lock,
    model_lock,
    rate_limited,
    task_lock,
)
from django_tasklock.celery import OnceTask, spread
from django_tasklock.celery.definition import bound_arguments, limiters_of
from django_tasklock.celery.delivery.cleanup import lock_name
from tests.support.guards import MEMORY, ONCE
from tests.support.once_app import OnceApp
from tests.testapp.models import Video

pytest_plugins = ["tests.support.once_fixtures"]

NAMES = ("video:{video_id}:{quality}", "video:{0}:{1}")
"""One lock's, by the names of its arguments, and by their numbers after ``self``."""


def passed_on(function: Any) -> Any:
    """Decorate with a wrapper that knows nothing about coroutines."""

    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    return wrapper


def patch_like_sentry(task: Any) -> None:
    """Replace ``run`` on the instance, as Sentry does when the task is run for the first time."""
    task.run = passed_on(task.run)


def plain(video_id: int, quality: str = "hd") -> Any:
    return current_lock().name  # type: ignore[union-attr]


def with_self(self: Any, video_id: int, quality: str = "hd") -> Any:
    assert self.request.id
    return current_lock().name  # type: ignore[union-attr]


def with_task(task: Any, video_id: int, quality: str = "hd") -> Any:
    assert task.request.id
    return current_lock().name  # type: ignore[union-attr]


@pytest.mark.parametrize("options", [{}, {"autoretry_for": (ZeroDivisionError,)}], ids=["patched", "autoretry"])
@pytest.mark.parametrize("body", [plain, with_self, with_task])
class TestBound:
    """One name, whatever the first parameter is called and whoever has replaced ``run`` on the instance."""

    def test_of_a_decorated_function(self, app: OnceApp, body: Any, options: Any) -> None:
        task = app.task(task_lock(NAMES[body is with_self])(body), base=Task, bind=body is not plain, **options)
        patch_like_sentry(task)
        task.delay(42, "sd")
        assert app.run() == ("SUCCESS", "video:42:sd")
        assert task.lock.name(42, "sd") == task.lock.name(video_id=42, quality="sd") == "video:42:sd"
        assert lock_name(task, {}, (42, "sd"), {}) == "video:42:sd"  # what is cleaned up after a killed process

    @pytest.mark.parametrize("key", [*NAMES, None])
    def test_of_a_once_task(self, app: OnceApp, body: Any, options: Any, key: str | None) -> None:
        task = app.task(body, bind=body is not plain, key=key, **options)
        before = task.lock_name(42, "sd")
        assert key is None or before == "video:42:sd"
        patch_like_sentry(task)
        task.delay(42, "sd")
        message = app.take()
        assert message is not None
        assert message.key == task.lock_name(42, quality="sd") == task.lock.name(42, "sd") == before
        assert app.run(message) == ("SUCCESS", before)

    def test_of_limits(self, app: OnceApp, body: Any, options: Any) -> None:
        limited = concurrency_limited("encode:{quality}", 2)(rate_limited("api", "100/s")(body))
        task = app.task(limited, base=Task, bind=body is not plain, **options)
        patch_like_sentry(task)
        (permit,) = limiters_of(task)
        assert permit.template.name(bound_arguments(task, (42, "sd")), {}) == "encode:sd"


def test_the_name_that_a_callable_makes(app: OnceApp) -> None:
    """It gets what the function gets, the task included."""
    task = app.task(task_lock(lambda *args: f"video:{args[-1]}")(with_task), base=Task, bind=True)
    task.delay(42)
    assert app.run() == ("SUCCESS", "video:42")
    assert task.lock.name(42) == "video:42"


@pytest.mark.parametrize("decorate", [task_lock("a:{0}"), task_lock(["b", "a:{0}"]), concurrency_limited("a:{0}", 2)])
def test_a_number_that_would_be_the_task_is_refused(app: OnceApp, decorate: Any) -> None:
    with pytest.raises(TaskLockError, match=r"\{0\} in 'a:\{0\}' is 'task', which is the task itself"):
        app.task(decorate(with_task), base=Task, bind=True)


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

    def test_celerys_own_tasks_follow_the_settings(self) -> None:
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
    limit = rate_limited("api", "100/s", tenant="{0}", tenants="100/s")
    task = app.task(limit(with_self), base=Task, bind=True)
    assert len(spread(Proxy(lambda: task), [(42,), (43,)])) == 2


def test_a_limit_of_a_tasks_class_beside_that_of_its_body_is_refused(app: OnceApp) -> None:
    class Limited(Task):  # type: ignore[misc]
        @rate_limited("requests", "100/s")
        def __call__(self, *args: Any, **kwargs: Any) -> Any:
            return super().__call__(*args, **kwargs)

    with pytest.raises(TaskLockError, match=r"task once\.task\S* has two rate limits, 'tokens' and 'requests'"):
        app.task(rate_limited("tokens", "100/s")(lambda: None), base=Limited)


class Awaited:
    """An awaitable of somebody's own."""

    def __await__(self) -> Any:
        yield


async def work(video_id: int) -> str:
    pytest.fail("it ran without its lock")


class TestCoroutines:
    """A body that is not over when it returns: the lock would not cover it, and the row would be done already."""

    @pytest.mark.parametrize(
        "decorate", [task_lock("a"), concurrency_limited("a", 3), rate_limited("a", "100/s"), None]
    )
    def test_it_is_refused_when_the_task_is_bound(self, app: OnceApp, decorate: Any) -> None:
        with pytest.raises(TaskLockError, match=r"task once\.task.* coroutine function.*async_to_sync"):
            app.task(work if decorate is None else decorate(work), base=OnceTask if decorate is None else Task)

    def test_a_task_without_our_decorators_is_none_of_our_business(self, app: OnceApp) -> None:
        assert app.task(work, base=Task).name in app.app.tasks

    def test_as_the_error_says_it_runs(self, app: OnceApp) -> None:
        @task_lock("inner:{video_id}")
        async def convert(video_id: int) -> Any:
            return current_lock().name  # type: ignore[union-attr]

        app.task(lambda video_id: async_to_sync(convert)(video_id), base=Task).delay(42)
        assert app.run() == ("SUCCESS", "inner:42")


def generator(video_id: int) -> Iterator[int]:
    yield video_id


UNFINISHED: dict[str, Callable[[int], Any]] = {
    "coroutine": passed_on(work),
    "awaitable": lambda video_id: Awaited(),
    "generator": passed_on(generator),
}


@pytest.mark.database
@pytest.mark.django_db
@pytest.mark.parametrize("unfinished", UNFINISHED)
def test_what_only_a_call_can_show_fails_that_call(app: OnceApp, unfinished: str) -> None:
    """Before its row is marked as done."""
    video = Video.objects.create(status="uploading")
    task = app.task(lambda video_id: None, guard=ONCE, model=Video, pk="video_id", ignore_result=True)
    type(task).run = staticmethod(UNFINISHED[unfinished])
    task.delay(video.pk)
    state, error = app.run()
    assert (state, type(error)) == ("FAILURE", TaskLockError)
    video.refresh_from_db()
    assert video.status == "failed"


@pytest.mark.database
@pytest.mark.django_db(transaction=True)
def test_a_coroutine_function_that_returns_a_coroutine(settings: Any) -> None:
    settings.TASKLOCK = MEMORY
    video = Video.objects.create(status="uploading")

    @model_lock(Video, "video:{video_id}", pk="video_id", guard=ONCE)
    async def forgets_to_await(video_id: int) -> Any:
        return work(42)

    with pytest.raises(TaskLockError, match="forgets_to_await returned a"):
        async_to_sync(forgets_to_await)(video.pk)
    video.refresh_from_db()
    assert video.status == "failed"
