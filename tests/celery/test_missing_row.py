"""A row that is not there may be one that is not committed yet: its message waits for it, and says if it never is."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
from celery.contrib.django.task import DjangoTask
from django.db import connection, transaction

from django_tasklock import GuardRejected, StateGuard, TaskLock, TaskLockError, model_lock
from django_tasklock.backends.memory import reset
from django_tasklock.celery.delivery import defer as delivery
from tests.support.guards import MEMORY, elsewhere
from tests.support.once_app import OnceApp, once_app
from tests.testapp.models import Video

pytest_plugins = ["tests.support.celery_site.fixtures"]
SITE_TASKS = ["tests.support.celery_site.missing_tasks"]

PK = 4242
GUARD = StateGuard(claim_from=["uploading"], claim_as="processing", done="ready")
pytestmark = pytest.mark.django_db(transaction=True)


@pytest.mark.database
@pytest.mark.quick
def test_it_runs_once_its_publisher_has_committed(celery_site):
    """However late that is, in tries of which none counts as a retry."""
    celery_site.worker(concurrency=2)
    hidden = connection.vendor == "postgresql"  # in others the claim would wait for the commit
    results = {}
    with transaction.atomic() if hidden else nullcontext():
        for pk, name in enumerate(("locked_row", "once_row"), PK):
            if hidden:
                Video.objects.create(pk=pk)
            results[pk] = celery_site.publish(name, pk)
        for result in results.values():
            celery_site.wait_until(lambda result=result: celery_site.result(result).state == "RETRY")
        assert celery_site.events("start") == []
    for pk, result in results.items():
        if not hidden:
            Video.objects.create(pk=pk)
        assert celery_site.outcome(result, 300)[1] == {"status": "success", "key": pk}
        assert len(celery_site.events("start", pk)) == 1
        assert Video.objects.get(pk=pk).status == "ready"


@pytest.fixture
def app(settings: Any) -> Iterator[OnceApp]:
    settings.TASKLOCK = MEMORY
    reset()
    with once_app() as made:
        made.app.set_current()  # as a project's only app is: it knows the tasks that are published
        yield made


@pytest.fixture(params=["decorated", "once"])
def make(app: OnceApp, request: Any) -> Any:
    """``make(body, on_conflict=...)``: a task with a guarded row, of either kind."""

    def made(body: Any = lambda pk: "ran", guard: StateGuard = GUARD, on_conflict: Any = "skip", **options: Any) -> Any:
        if request.param == "once":
            options |= {"key": "video:{pk}", "guard": guard, "model": Video, "on_conflict": on_conflict}
            return app.task(body, **options)
        body.__name__ = "body"
        return app.task(model_lock(Video, "video:{pk}", guard=guard, on_conflict=on_conflict)(body), base=DjangoTask)

    return made


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time that a worker reads."""
    now = [1e9]
    monkeypatch.setattr(delivery, "time", SimpleNamespace(time=lambda: now[0]))
    return now


class TestTries:
    @pytest.mark.parametrize("on_conflict", ["skip", "raise", "queue"])
    def test_the_message_is_sent_again_as_the_same_try(self, app, make, on_conflict):
        task = make(on_conflict=on_conflict)
        result = task.delay(PK)
        assert app.run()[0] == "RETRY"
        assert not TaskLock(f"video:{PK}").locked()
        message = app.take()
        assert (message.id, message.headers["retries"], bool(message.headers["eta"])) == (result.id, 0, True)
        Video.objects.create(pk=PK)
        assert app.run(message) == ("SUCCESS", "ran")
        assert app.all() == []
        assert Video.objects.get(pk=PK).status == "ready"

    def test_the_pauses_grow_until_the_task_fails(self, app, make, clock):
        make(on_conflict="skip").delay(PK)
        for pause in (0.5, 0.5, 1, 2, 4, 8, 14):
            state, error = app.run()
            assert (state, error.when) == ("RETRY", pause)
            clock[0] += pause
        state, error = app.run()
        assert (state, type(error), error.reason) == ("FAILURE", GuardRejected, "missing")
        assert str(error).startswith(f"there is no testapp.Video {PK} to claim")
        assert "delay_on_commit" in str(error)
        assert not TaskLock(f"video:{PK}").locked()
        assert app.all() == []

    def test_a_later_retry_of_the_body_has_its_own_patience(self, app, make, clock):
        def body(pk: int) -> None:
            Video.objects.filter(pk=pk).delete()
            raise tasks[0].retry(countdown=0)

        tasks = [make(body)]
        tasks[0].delay(PK)
        assert app.run()[1].when == 0.5
        Video.objects.create(pk=PK)
        assert app.run()[1].when == 0
        clock[0] += 100
        assert app.run()[1].when == 0.5
        assert app.take().headers["retries"] == 1

    def test_no_lock_is_kept_but_the_one_of_publication(self, app):
        task = app.task(lambda pk: "ran", key="video:{pk}", guard=GUARD, model=Video, unique="until_start")
        first = task.delay(PK)
        assert app.run()[0] == "RETRY"
        assert not TaskLock(f"video:{PK}").locked()
        assert task.delay(PK).id == first.id
        Video.objects.create(pk=PK)
        assert app.run() == ("SUCCESS", "ran")
        assert task.delay(PK).id != first.id


class TestInATest:
    """A worker in the process of a test, in a thread: ``celery.contrib.testing.worker``."""

    @pytest.mark.django_db(transaction=False)
    def test_a_row_that_the_test_never_commits_is_an_error_at_once(self, app, make):
        make().delay(PK)
        state, error = elsewhere(app.run)
        assert (state, type(error), error.reason) == ("FAILURE", GuardRejected, "missing")
        assert "transaction=True" in str(error)
        assert app.all() == []

    def test_one_that_it_may_commit_is_awaited(self, app, make):
        make().delay(PK)
        assert elsewhere(app.run)[0] == "RETRY"


def test_a_function_has_no_message_to_send_again(make):
    assert make()(PK)["reason"] == "missing"
    with pytest.raises(GuardRejected) as caught:
        make(on_conflict="raise")(PK)
    assert caught.value.reason == "missing"


@pytest.mark.parametrize("given", [0, None, float("nan")])
def test_a_timeout_that_is_none(given):
    with pytest.raises(TaskLockError, match="missing_timeout must be"):
        StateGuard(claim_from=["uploading"], claim_as="processing", missing_timeout=given)


class TestTheWarning:
    """Of a publisher that does not wait for its commit."""

    @staticmethod
    def told(caplog: Any, task: Any) -> int:
        records = [record for record in caplog.records if record.name == "django_tasklock"]
        found = [record.getMessage() for record in records if record.levelname == "WARNING"]
        assert all(text.startswith(task.name) and "delay_on_commit" in text for text in found)
        return len(found)

    def test_is_logged_once(self, make, caplog):
        task = make()
        for _ in range(2):
            with transaction.atomic():
                task.delay(PK)
        assert self.told(caplog, task) == 1

    def test_of_a_unique_task(self, app, caplog):
        task = app.task(lambda pk: "ran", unique="until_finish")
        with transaction.atomic():
            task.delay(PK)
        assert self.told(caplog, task) == 1

    def test_is_not_logged_after_the_commit_or_for_later_or_without_a_guard(self, app, make, caplog):
        task, unguarded = make(), app.task()
        task.delay(PK)
        with transaction.atomic():
            task.delay_on_commit(PK)
            transaction.on_commit(lambda: task.delay(PK))
            task.apply_async((PK,), countdown=5)
            unguarded.delay()
        assert self.told(caplog, task) == 0

    @pytest.mark.django_db(transaction=False)
    def test_is_not_logged_in_a_test_case(self, make, caplog):
        task = make()
        task.delay(PK)
        assert self.told(caplog, task) == 0
