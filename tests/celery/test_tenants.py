"""A schema per tenant: names have the tenant's part, messages take it along, and a row is judged by its own tenant."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import pytest
from asgiref.sync import async_to_sync, sync_to_async
from celery import Task
from django.db import connection
from django.http import HttpRequest, JsonResponse
from django.test import AsyncClient
from django.urls import path

from django_tasklock import (
    ConcurrencyLimiter,
    RateLimiter,
    TaskLock,
    TaskLockError,
    acquire_task_lock,
    current_lock,
    get_lock_info,
    is_task_locked,
    list_all_task_locks,
    release_task_lock,
    task_lock,
    task_lock_context,
)
from django_tasklock.backends import get_backend
from django_tasklock.celery import parked_messages
from django_tasklock.celery.delivery.cleanup import lock_name
from django_tasklock.celery.queue.promoter import promote
from django_tasklock.operations import Actor, get_lock, list_locks, release_lock
from tests.support.guards import GUARD, no_guards
from tests.support.once_app import Message, OnceApp, once_app
from tests.support.stores import clear
from tests.support.sweeping import claimed, dead_holder, guarded_function, hold, swept, tally_of
from tests.testapp.models import Video

tenant: ContextVar[Any] = ContextVar("tenant", default="public")


def present() -> Any:
    """The tenant whose code runs here; a worker that knows nothing of tenants is ``public``."""
    return tenant.get()


@contextmanager
def within(name: Any) -> Iterator[None]:
    token = tenant.set(name)
    try:
        yield
    finally:
        tenant.reset(token)


def schema() -> str:
    """The tenant of the thread's own database connection, as django-tenants has it."""
    return getattr(connection, "schema_name", "public")


@contextmanager
def schema_context(name: str) -> Iterator[None]:
    before, connection.schema_name = schema(), name  # type: ignore[attr-defined]
    try:
        yield
    finally:
        connection.schema_name = before  # type: ignore[attr-defined]


def switch(get_response: Callable[[HttpRequest], Any]) -> Callable[[HttpRequest], Any]:
    """A synchronous middleware, which ASGI calls in the thread of the ORM, where it sets the tenant of the view."""

    def middleware(request: HttpRequest) -> Any:
        with schema_context(request.headers["tenant"]):
            return get_response(request)

    return middleware


@task_lock("decorated")
async def decorated() -> str:
    return str(current_lock().name)


async def view(request: HttpRequest) -> JsonResponse:
    lock = TaskLock("block")
    async with lock, task_lock_context("context"), TaskLock("one", "two"):
        info = await TaskLock("block").ainfo()
        assert info is not None
        return JsonResponse({"held": held(), "here": [lock.name, info.name, await decorated()]})


urlpatterns = [path("", view)]


@pytest.fixture(autouse=True)
def tenants(settings: Any) -> None:
    settings.TASKLOCK = {**settings.TASKLOCK, "KEY_PREFIX": f"{__name__}.present"}
    clear("redis")
    no_guards()


@pytest.fixture
def app() -> Iterator[OnceApp]:
    with once_app() as made:
        made.app.set_current()
        yield made


def held() -> list[str]:
    return sorted(info.name for info in list_all_task_locks())


class TestNames:
    def test_the_row_42_of_two_tenants_has_two_locks(self):
        @task_lock("video:{pk}", on_conflict="raise")
        def work(pk: int) -> list[str]:
            with within("b"), TaskLock("video:42") as lock:
                assert lock.name == "b:video:42"
                assert work.lock.info(pk=42).name == "b:video:42"
                return held()

        with within("a"):
            assert work(42) == ["a:video:42", "b:video:42"]
            assert acquire_task_lock("task_lock:42")
        with within("b"):
            assert not is_task_locked("42")
            assert not release_task_lock("42")
        with within("a"):
            assert get_lock_info("42").name == "a:42"
            assert release_task_lock("42")

    def test_a_name_that_becomes_too_long_ends_in_a_hash(self):
        with within("a"):
            first, second = (TaskLock("x" * 199 + end).name for end in "yz")
            assert first != second
            assert {len(first), len(second)} == {200}
            assert first.startswith("a:xxx")
            assert TaskLock(first).name == first

    @pytest.mark.parametrize("wrong", [None, "", "a:b", "x" * 64, "a\n"])
    def test_a_tenant_that_can_begin_no_name(self, wrong):
        with within(wrong), pytest.raises(TaskLockError, match=r"TASKLOCK\['KEY_PREFIX'\] returned"):
            TaskLock("video:42")

    def test_limits_are_those_of_all_unless_they_name_the_tenant(self):
        limiter = ConcurrencyLimiter("encode", 1)
        with within("a"), limiter, within("b"):
            assert ConcurrencyLimiter("encode", 1).info().used == 1
        for name, allowed in (("a", True), ("b", False)):
            with within(name):
                assert (RateLimiter("api", "1/h").try_acquire() is not None) is allowed

    @pytest.mark.django_db
    def test_operators_see_all(self):
        for name in "ab":
            with within(name):
                acquire_task_lock("video:42")
        assert sorted(lock.info.name for lock in list_locks().locks) == ["a:video:42", "b:video:42"]
        assert release_lock("b:video:42", by=Actor("me"))
        assert held() == ["a:video:42"]


class TestCoroutines:
    """Their thread has other database connections than the ORM calls that they await, and so another tenant."""

    @pytest.fixture(autouse=True)
    def schemas(self, settings: Any) -> None:
        settings.TASKLOCK = {**settings.TASKLOCK, "KEY_PREFIX": f"{__name__}.schema"}

    def test_an_asynchronous_view_locks_the_names_of_its_tenant(self, settings):
        settings.MIDDLEWARE, settings.ROOT_URLCONF = [f"{__name__}.switch"], __name__
        get = async_to_sync(AsyncClient().get)
        for name in ("a", "b"):
            assert get("/", headers={"tenant": name}).json() == {
                "held": [f"{name}:{one}" for one in ("block", "context", "one", "two")],
                "here": [f"{name}:block", f"{name}:block", f"{name}:decorated"],
            }
        assert held() == []

    def test_what_cannot_ask_for_the_tenant_is_refused(self, app):
        once = app.task(lambda: None, key="once")
        plain = app.task(task_lock("plain")(lambda: None), base=Task)
        made: list[Callable[[], Any]] = [
            lambda: TaskLock("x").locked(),
            lambda: TaskLock("x").info(),
            lambda: TaskLock("x").name,
            lambda: acquire_task_lock("x"),
            lambda: is_task_locked("x"),
            lambda: TaskLock("y").acquire(),
            lambda: task_lock_context("z").__enter__(),
            task_lock("v")(lambda: None),
            once.delay,
            plain.delay,
        ]

        async def refused(call: Callable[[], Any]) -> None:
            with pytest.raises(TaskLockError, match=r"KEY_PREFIX'\] cannot be asked in a coroutine.*sync_to_async"):
                call()
            with schema_context("loop"):
                await sync_to_async(call)()  # as the sentence says

        with schema_context("a"):
            for call in made:
                async_to_sync(refused)(call)
        assert "a:x" in held()
        assert all(name.startswith("a:") for name in held())
        assert [message.ours["tenant"] for message in app.all()] == ["a", "a"]

    def test_an_object_that_a_coroutine_has_made_is_of_one_tenant(self):
        async def make() -> TaskLock:
            lock = TaskLock("x")
            assert "'x'" in repr(lock)
            assert not lock.held
            return lock

        async def name(lock: TaskLock) -> str:
            async with lock:
                return lock.name

        lock = async_to_sync(make)()
        with schema_context("a"):
            assert [async_to_sync(name)(lock), lock.name] == ["a:x", "a:x"]
        with schema_context("b"), pytest.raises(TaskLockError, match="is lock 'a:x', and is used as 'b:x'"):
            async_to_sync(name)(lock)


class TestMessages:
    """Published by two tenants, and run by a worker that is neither."""

    def published(self, app: OnceApp, task: Any) -> list[Message]:
        for name in "ab":
            with within(name):
                task.delay(42)
        return app.all()

    def test_it_runs_under_its_publishers_lock(self, app):
        def body(pk: int) -> str:
            return str(current_lock().name)

        for task in (
            app.task(body, key="video:{pk}"),
            app.task(body, key=lambda pk: f"video:{pk}", unique="until_finish"),
            app.task(task_lock("video:{pk}")(body), base=Task),
        ):
            messages = self.published(app, task)
            assert [app.run(one)[1] for one in messages] == ["a:video:42", "b:video:42"]
            killed = [lock_name(task, one.headers["tasklock"], one.args, one.kwargs) for one in messages]
            assert killed == ["a:video:42", "b:video:42"]  # what is cleaned up after a killed process
        assert held() == []

    def test_locks_that_the_body_names_are_of_where_it_is(self, app):
        def body(pk: int) -> list[str]:
            with within("c"):
                return [TaskLock("x").name, nested()]

        @task_lock("nested")
        def nested() -> str:
            return str(current_lock().name)

        [first, second] = self.published(app, app.task(body))
        assert app.run(first)[1] == app.run(second)[1] == ["c:x", "c:nested"]

    @pytest.mark.parametrize("until", ["until_start", "until_finish"])
    def test_unique_returns_no_result_of_another_tenant(self, app, until):
        task = app.task(lambda pk: None, key="video:{pk}", unique=until)
        ids = {}
        for name in ("a", "b", "a", "b"):
            with within(name):
                ids.setdefault(name, set()).add(task.delay(42).id)
        assert [len(ids["a"]), len(ids["b"])] == [1, 1]
        assert ids["a"] != ids["b"]
        for message in app.all():
            assert app.run(message)[0] == "SUCCESS"
        assert held() == []

    def test_a_retry_with_other_arguments_stays_with_its_tenant(self, app):
        def body(self: Any, pk: int) -> str:
            if pk == 42:
                raise self.retry(args=(43,), countdown=0)
            return str(current_lock().name)

        task = app.task(body, key="video:{pk}", bind=True)
        with within("a"):
            task.delay(42)
        assert app.run()[0] == "RETRY"
        assert app.run() == ("SUCCESS", "a:video:43")

    @pytest.mark.django_db(transaction=True)
    def test_a_parked_message_replaces_none_of_another_tenant(self, app):
        def body(pk: int) -> str:
            return str(current_lock().name)

        task = app.task(body, key="video:{pk}", on_conflict="coalesce")
        tokens = {name: hold(name) for name in ("a:video:42", "b:video:42")}
        for message in self.published(app, task):
            app.run(message)
        assert sorted(one.name for one in parked_messages()) == sorted(tokens)
        for name, token in tokens.items():
            get_backend().release(name, token)
            promote(name, app.app)
        assert sorted(app.run(message)[1] for message in app.all()) == sorted(tokens)


@pytest.mark.django_db(transaction=True)
class TestRows:
    """Both tenants have a row of the same key: here they are one row, which must not be touched for the other."""

    def crashed(self) -> Video:
        """A row that a process of tenant ``a`` has claimed, and left."""
        guarded_function()
        row = claimed()
        name, label = f"a:video:{row.pk}", f"testapp.video:{row.pk}"
        Video.objects.filter(pk=row.pk).update(lock_token=hold(name, dead_holder(), row=label))
        row.refresh_from_db()
        return row

    def test_a_release_by_another_tenant_is_refused(self):
        row = self.crashed()
        name = f"a:video:{row.pk}"
        with within("b"):
            assert get_lock(name).row is None
            with pytest.raises(TaskLockError, match="guards a row of tenant 'a'.* of 'b': release it as 'a'"):
                release_lock(name, by=Actor("me"))
        assert held() == [name]
        assert Video.objects.get(pk=row.pk).lock_token == row.lock_token
        with within("a"):
            assert get_lock(name).row.agrees
            assert release_lock(name, by=Actor("me")).fenced
        assert Video.objects.get(pk=row.pk).lock_token == ""

    def test_a_sweep_restores_the_rows_of_its_tenant_alone(self):
        row = self.crashed()
        Video.objects.filter(pk=row.pk).update(lock_token="", status="uploaded")  # that of tenant b is another
        with within("b"):
            assert tally_of(swept()) == {}
        assert held() == [f"a:video:{row.pk}"]
        with within("a"):
            assert tally_of(swept()) == {"dead": (1, 1, 0, 0)}
        assert held() == []

    def test_a_lock_of_another_tenant_vouches_for_no_row(self):
        """Tenant ``b`` has an abandoned row of the key that ``a`` works on."""
        guarded_function()
        row = claimed()
        hold(f"a:video:{row.pk}", row=f"testapp.video:{row.pk}")
        with within("b"):
            assert tally_of(swept()) == {"abandoned": (1, 1, 0, 0)}
        assert held() == [f"a:video:{row.pk}"]

    def test_no_row_is_claimed_as_another_tenant(self, app):
        """A worker that does not switch to the schema of its message would claim the wrong row."""
        task = app.task(lambda video_id: None, key="v:{video_id}", guard=GUARD, model=Video, pk="video_id")
        row = Video.objects.create()
        with within("a"):
            task.delay(row.pk)
        state, error = app.run()
        assert state == "FAILURE"
        assert "of tenant 'a' cannot be claimed by tenant 'public'" in str(error)
        assert Video.objects.get(pk=row.pk).lock_epoch == 0
        assert held() == []
