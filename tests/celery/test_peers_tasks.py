"""What users of celery-once and celery-singleton rely on: the cases of their own tests, as behaviour of ``OnceTask``.

``unique="until_finish"`` is what both do; ``until_start`` is celery-once's ``unlock_before_run``. Where we differ on
purpose, the case stands in ``TestDifferences`` with its reason, and in docs/comparison.md.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from celery import chain
from kombu.exceptions import OperationalError

from django_tasklock import TaskLockError, list_all_task_locks
from tests.support.guards import elsewhere
from tests.support.once_app import OnceApp, once_app
from tests.support.public import in_store
from tests.support.stores import stores


@pytest.fixture(params=stores("redis", "memory"))
def app(request: Any, settings: Any) -> Iterator[OnceApp]:
    for _ in in_store(request.param, settings, TIMEOUT=1000):
        with once_app() as made:
            yield made


def unique_locks() -> list[str]:
    return [info.name for info in list_all_task_locks() if info.name.startswith("unique:")]


class TestKeys:
    """celery-once: ``get_key``."""

    def test_of_a_task_without_arguments(self, app: OnceApp) -> None:
        task = app.task(lambda: None)
        assert task.lock_name() == task.lock_name()
        assert task.lock_name() != app.task(lambda: None).lock_name()

    def test_of_arguments_however_they_are_passed(self, app: OnceApp) -> None:
        task = app.task(lambda a, b=2: None)
        assert task.lock_name(1, 2) == task.lock_name(1, b=2) == task.lock_name(b=2, a=1) == task.lock_name(1)
        assert task.lock_name(1, 2) != task.lock_name(2, 1)

    def test_of_some_arguments(self, app: OnceApp) -> None:
        """celery-once: ``once={"keys": ["a"]}``; celery-singleton: ``unique_on=["a"]``."""
        task = app.task(lambda a, b: None, key="example:{a}")
        assert task.lock_name(1, 2) == task.lock_name(1, b=3) == "example:1"

    def test_of_a_bound_task(self, app: OnceApp) -> None:
        task = app.task(lambda self, a, b: None, bind=True, key="bound:{a}:{b}")
        assert task.lock_name(1, b=2) == "bound:1:2"

    def test_of_a_part_of_an_argument(self, app: OnceApp) -> None:
        task = app.task(lambda user: None, key=lambda user: f"user:{user['id']}")
        assert task.lock_name({"id": 7, "name": "x"}) == "user:7"

    @pytest.mark.parametrize("value", [None, True, 1.5, "é✓", [1, [2]], {"b": 1, "a": [2]}])
    def test_of_any_values(self, app: OnceApp, value: object) -> None:
        task = app.task(lambda a: None)
        assert task.lock_name(value) == task.lock_name(a=value)


class TestPublishing:
    """celery-singleton: ``TestSimpleTask``; celery-once: ``test_tasks``."""

    def test_a_duplicate_is_the_one_that_is_there(self, app: OnceApp) -> None:
        task = app.task(lambda *args: None, unique="until_finish")
        assert len({task.apply_async(args=[1, 2, 3]).id for _ in range(10)}) == 1
        assert len(app.all()) == 1

    def test_others_are_others(self, app: OnceApp) -> None:
        task = app.task(lambda *args: None, unique="until_finish")
        assert len({task.apply_async(args=[number, number + 1]).id for number in range(5)}) == 5

    @pytest.mark.parametrize("body", [lambda: "done", lambda: 1 / 0], ids=["success", "failure"])
    def test_after_its_end_there_is_another(self, app: OnceApp, body: Any) -> None:
        task = app.task(body, unique="until_finish")
        first = task.delay()
        app.run()
        assert unique_locks() == []
        assert task.delay().id != first.id

    def test_while_it_runs_there_is_none(self, app: OnceApp) -> None:
        seen: list[str] = []
        task = app.task(lambda: seen.append(app.app.tasks[task.name].delay().id), unique="until_finish")
        first = task.delay()
        app.run()
        assert seen == [first.id]

    def test_while_it_runs_there_is_if_it_is_unique_until_its_start(self, app: OnceApp) -> None:
        """celery-once: ``unlock_before_run``."""
        seen: list[str] = []
        task = app.task(lambda: seen.append(app.app.tasks[task.name].delay().id), unique="until_start")
        first = task.delay()
        app.run()
        assert seen != [first.id]

    def test_through_a_retry_it_is_the_same(self, app: OnceApp) -> None:
        def body(self: Any) -> None:
            if not self.request.retries:
                raise self.retry(countdown=0)

        task = app.task(body, bind=True, unique="until_finish")
        first = task.delay()
        assert app.run()[0] == "RETRY"
        assert task.delay().id == first.id
        assert app.run()[0] == "SUCCESS"
        assert task.delay().id != first.id

    def test_it_expires(self, app: OnceApp) -> None:
        """celery-once: ``timeout``; celery-singleton: ``lock_expiry``."""
        task = app.task(lambda: None, unique="until_finish", unique_for=60)
        task.delay()
        [lock] = [info for info in list_all_task_locks() if info.name in unique_locks()]
        assert 0 < lock.ttl <= 60

    def test_what_cannot_be_published_leaves_nothing(self, app: OnceApp, monkeypatch: pytest.MonkeyPatch) -> None:
        """celery-singleton: ``test__apply_async_fails__lock_cleared`` and ``__exception_reraised``."""
        task = app.task(lambda: None, unique="until_finish")

        def fails(*args: Any, **kwargs: Any) -> None:
            raise OperationalError("the broker is away")

        with monkeypatch.context() as away:
            away.setattr(app.app.amqp, "send_task_message", fails)
            with pytest.raises(OperationalError, match="the broker is away"):
                task.delay()
        assert unique_locks() == []
        assert task.delay().id

    def test_in_chains(self, app: OnceApp) -> None:
        task = app.task(lambda *args: "done", unique="until_finish")
        first = chain(task.si(1), task.si(2)).delay()
        second = chain(task.si(1), task.si(3)).delay()
        assert first.id != second.id
        ran = 0
        while (message := app.take()) is not None:
            assert app.run(message)[0] == "SUCCESS"
            ran += 1
        assert ran >= 2
        assert unique_locks() == []

    def test_applied_here(self, app: OnceApp) -> None:
        """celery-once: ``apply`` runs it, whatever is queued."""
        task = app.task(lambda: "done", unique="until_finish")
        task.delay()
        assert task.apply().get() == "done"


class TestDifferences:
    """Each is on purpose. docs/comparison.md has them for readers."""

    def test_publishing_again_is_no_error_by_default(self, app: OnceApp) -> None:
        """celery-once raises ``AlreadyQueued``: most callers want the result of the one that is there."""
        task = app.task(lambda: None, unique="until_finish")
        assert task.delay().id == task.delay().id

    def test_two_messages_never_run_at_once_even_if_both_were_published(self, app: OnceApp) -> None:
        """There the lock is the publisher's alone: what is published twice, or delivered twice, runs twice at once."""
        ran: list[Any] = []
        task = app.task(lambda: ran.append(elsewhere(app.run)), key="a", unique="until_finish")
        task.delay()
        task.once(unique=None).delay()
        app.run()
        assert len(ran) == 1
        assert app.all() == []

    def test_their_options_are_refused_with_what_to_write(self, app: OnceApp) -> None:
        for theirs in ({"once": {"keys": ["a"]}}, {"unique_on": ["a"]}):
            with pytest.raises(TaskLockError, match="key="):
                app.task(lambda a: None, **theirs)
