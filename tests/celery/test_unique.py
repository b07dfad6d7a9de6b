"""While a message of a key is under way, ``delay()`` publishes no second one: it gives the result of the first.

However the message ends, or its publisher or worker dies, nothing stays behind that keeps others from being published.
"""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from celery import group
from celery.exceptions import Ignore, Reject, Retry
from celery.signals import before_task_publish, task_unknown
from celery.utils import uuid
from django.db import transaction

from django_tasklock import RateLimiter, TaskLock, get_lock_info, list_all_task_locks, rate_limited
from django_tasklock.backends import get_backend
from django_tasklock.backends.memory import MemoryBackend
from django_tasklock.celery import OnceTask, parked_messages
from django_tasklock.celery.queue.promoter import promote
from django_tasklock.celery.unique import PUBLISHING_LEASE
from django_tasklock.exceptions import AlreadyPublished, BackendUnavailable
from django_tasklock.locks.heartbeat import heartbeat
from tests.support.guards import elsewhere
from tests.support.proxy import Proxy, scripts
from tests.support.stores import eventually, renewed

pytest_plugins = ["tests.support.celery_site.fixtures", "tests.support.once_fixtures", "tests.support.redis_fixtures"]
SITE_TASKS = ["tests.support.celery_site.api_tasks"]


def unique_locks() -> list[Any]:
    return [info for info in list_all_task_locks() if info.name.startswith("unique:")]


def unique_lock(task: Any, key: str) -> Any:
    return get_lock_info(f"unique:{task.name}:{key}")


def raise_(error: BaseException) -> None:
    raise error


class TestPublishing:
    @pytest.mark.parametrize("until", ["until_start", "until_finish"])
    def test_the_second_gives_the_first(self, app, until):
        task = app.task(lambda x, y=1: None, unique=until)
        first = task.delay(1)
        for second in (task.delay(1), task.delay(x=1), task.apply_async((1,), countdown=9), task.s(1).apply_async()):
            assert (second.id, type(second)) == (first.id, type(first))
        other = task.delay(2)
        assert other.id != first.id
        assert [message.id for message in app.all()] == [first.id, other.id]

    def test_of_one_call(self, app):
        task = app.task(key="a")
        first = task.once(unique="until_start").delay()
        assert task.once(unique="until_finish").delay().id == first.id
        assert task.delay().id != first.id  # which did not ask
        always = app.task(key="b", unique="until_start")
        assert always.once(unique=None).delay().id != always.once(unique=None).delay().id
        assert always.once(key="c").delay(1).id == always.once(key="c").delay(2).id != always.delay(1).id

    def test_another_task_with_the_same_key_is_published(self, app):
        """They take turns; the one does not do the other's work."""
        first, second = (app.task(lambda pk: None, key="video:{pk}", unique="until_finish") for _ in range(2))
        assert first.delay(1).id != second.delay(1).id
        assert len(app.all()) == 2

    def test_publishers_race(self, app):
        task = app.task(key="a", unique="until_finish")
        with ThreadPoolExecutor(4) as threads:
            published = set(threads.map(lambda _: task.delay().id, range(20)))
        assert published == {message.id for message in app.all()}
        assert len(published) == 1

    @pytest.mark.parametrize(
        ("options", "sending", "seconds"),
        [
            ({}, {}, 1000),
            ({"timeout": 50, "unique_for": timedelta(minutes=5)}, {}, 300),
            ({"unique_for": 300}, {"countdown": 5000}, 5300),
            ({"unique_for": 300}, {"eta": 5000}, 5300),
            ({"unique_for": 300}, {"eta": -5000}, 300),
            ({"expires": 60}, {}, 70),
            ({"unique_for": 20}, {"expires": 60}, 20),
        ],
    )
    def test_the_unique_lock_lasts_until_after_the_message_is_due(self, app, options, sending, seconds):
        """Gold standard 8.21: until after it is due, but no longer than it may live; whatever the machine's zone."""
        if "eta" in sending:  # one that is naive means UTC
            sending = {"eta": (datetime.now(UTC) + timedelta(seconds=sending["eta"])).replace(tzinfo=None)}
        app.task(key="a", unique="until_start", **options).apply_async(**sending)
        (info,) = unique_locks()
        assert info.ttl == pytest.approx(seconds, abs=3)

    def test_after_unique_for_another_one_can_be_published_in_place_of_a_purged_one(self, app):
        """Gold standard 8.31."""
        task = app.task(key="a", unique="until_finish", unique_for=0.1)
        first = task.delay()
        assert app.take().id == first.id
        eventually(lambda: not unique_locks())
        assert task.delay().id == app.take().id

    def test_what_could_not_be_published_leaves_nothing(self, app, monkeypatch):
        """Gold standard 8.30."""
        task = app.task(key="a", unique="until_finish")
        with monkeypatch.context() as broken:
            broken.setattr(app.app.amqp, "send_task_message", lambda *args, **kwargs: raise_(KeyboardInterrupt()))
            with pytest.raises(KeyboardInterrupt):
                task.delay()
        assert get_backend().records() == []
        assert task.delay().id == app.take().id

    def test_a_publisher_that_dies_leaves_it_for_a_short_time(self, app):
        """Gold standard 8.30: while it is published, it is not taken for longer."""
        seen: list[Any] = []

        def look(**details: Any) -> None:
            seen.extend(unique_locks())

        before_task_publish.connect(look)
        try:
            app.task(key="a", unique="until_finish", unique_for=500).delay()
        finally:
            before_task_publish.disconnect(look)
        assert seen[0].ttl <= 10
        assert unique_locks()[0].ttl == pytest.approx(500, abs=3)

    def test_a_publisher_that_stalls(self, app, monkeypatch, caplog):
        """Stopped for longer than the lock is taken for: the second is published, and loses nothing by the first."""
        monkeypatch.setattr("django_tasklock.celery.unique.PUBLISHING_LEASE", 50)
        task = app.task(lambda x: None, key="a:{x}", unique="until_finish")
        published = []

        def stall(**details):
            before_task_publish.disconnect(stall)
            eventually(lambda: not unique_locks())
            monkeypatch.setattr("django_tasklock.celery.unique.PUBLISHING_LEASE", PUBLISHING_LEASE)
            published.append(task.delay(1).id)
            monkeypatch.setattr("django_tasklock.celery.unique.PUBLISHING_LEASE", 50)

        before_task_publish.connect(stall, weak=False)
        first = task.delay(1).id
        [message] = [record.getMessage() for record in caplog.records if record.name == "django_tasklock"]
        assert f"publishing {first} took" in message
        second, late = app.all()
        assert (second.id, late.id) == (published[0], first)
        app.run(late)
        assert task.delay(1).id == published[0]
        app.run(second)
        assert not unique_locks()

    @pytest.mark.database
    @pytest.mark.django_db(transaction=True)
    def test_a_rollback_leaves_nothing(self, app):
        """Gold standard 8.30."""
        task = app.task(key="a", unique="until_finish")
        with pytest.raises(ZeroDivisionError), transaction.atomic():
            task.delay_on_commit()
            1 / 0  # noqa: B018
        assert get_backend().records() == []
        assert app.all() == []


class Down(MemoryBackend):
    """A store that does not answer."""

    def acquire(self, ask: Any) -> Any:
        raise BackendUnavailable("down", name=ask.name)


class TestStoreDown:
    @pytest.fixture
    def down(self, app, settings):
        settings.TASKLOCK = {"BACKEND": f"{__name__}.Down", "LOCATION": "default"}
        yield
        heartbeat.reconciler.clear()

    def test_run(self, app, down):
        task = app.task(key="a", unique="until_finish")
        assert task.delay().id != task.delay().id
        for message in app.all():
            assert "unique" not in message.ours
            assert app.run(message) == ("SUCCESS", "ran")

    @pytest.mark.parametrize("policy", ["raise", "skip"])
    def test_raise(self, app, down, policy):
        """There is no result to skip with."""
        with pytest.raises(BackendUnavailable):
            app.task(key="a", unique="until_finish", on_unavailable=policy).delay()
        assert app.all() == []

    @pytest.mark.redis
    def test_a_lost_reply(self, app, proxy: Proxy, name):
        """The store has it, and nobody is told: it is undone as soon as the store answers again."""
        task = app.task(key=name, unique="until_finish", on_unavailable="raise")
        proxy.lose_reply(scripts("acquire"), times=5)
        with pytest.raises(BackendUnavailable):
            task.delay()
        proxy.heal()
        eventually(lambda: unique_lock(task, name) is None, 5)  # it would end by itself after ten
        assert task.delay().id == app.take().id


class TestRuns:
    """From a message, as a worker does."""

    @pytest.mark.parametrize(("until", "free"), [("until_start", True), ("until_finish", False)])
    def test_while_it_runs(self, app, until, free):
        task = app.task(lambda self: self.delay().id, bind=True, key="a", unique=until)
        first = task.delay()
        state, meanwhile = app.run()
        assert (state, meanwhile != first.id) == ("SUCCESS", free)
        second = task.delay()
        assert second.id != first.id
        assert (second.id == meanwhile) is free
        assert [message.id for message in app.all()] == [second.id]

    def test_the_running_one_has_it_for_its_lease_and_renews_it(self, app):
        """So a worker that dies does not keep others from being published for long."""

        def body():
            [info] = unique_locks()
            renewed(info.name)
            return info.ttl

        app.task(body, key="a", unique="until_finish", lease=1, unique_for=500).delay()
        state, ttl = app.run()
        assert state == "SUCCESS"
        assert ttl <= 1

    @pytest.mark.parametrize(
        ("error", "late", "state", "kept"),
        [
            (None, True, "SUCCESS", False),
            (ValueError("no"), True, "FAILURE", False),
            (Ignore(), True, "IGNORED", False),
            (Reject("no", requeue=False), True, "REJECTED", False),
            (Reject("again", requeue=True), True, "REJECTED", True),
            (Reject("again", requeue=True), False, "REJECTED", False),  # acknowledged, it does not come back
        ],
    )
    def test_over_however_it_ends(self, app, error, late, state, kept):
        """Gold standard 8.32: also with a result that is false."""
        body = lambda: raise_(error) if error else None  # noqa: E731
        app.task(body, key="a", unique="until_finish", acks_late=late).delay()
        assert app.run()[0] == state
        assert bool(unique_locks()) is kept

    def test_over_without_having_run(self, app):
        app.task(key="a", unique="until_start", on_conflict="reject").delay()
        with TaskLock("a"):
            elsewhere(app.run)
        assert app.calls == []
        assert unique_locks() == []

    @pytest.mark.parametrize(
        ("error", "state", "kept"), [(ValueError("no"), "FAILURE", False), (Retry("later", when=5), "RETRY", True)]
    )
    def test_over_before_its_run(self, app, error, state, kept):
        """``before_start`` of Celery has raised: our ``__call__`` was never called."""
        base = type("Refusing", (OnceTask,), {"before_start": lambda *args: raise_(error), "abstract": True})
        app.task(key="a", base=base, unique="until_start").delay()
        assert app.run()[0] == state
        assert bool(unique_locks()) is kept

    def test_held_until_its_turn_if_its_rate_is_limited(self, app, name):
        """Until then it is sent again, and its body has not started."""
        limiter = RateLimiter(name, "1/5m")
        task = app.task(rate_limited(name, "1/5m")(lambda: "ran"), key="a", unique="until_start")
        first = task.delay()
        limiter.acquire()
        assert app.run()[0] == "RETRY"
        message = app.take()
        assert task.delay().id == message.id == first.id
        limiter.reset()
        assert app.run(message) == ("SUCCESS", "ran")
        assert task.delay().id != first.id

    def test_held_across_retries(self, app):
        """Gold standard 8.23."""

        def body(self):
            if self.request.retries < 2:
                raise self.retry(countdown=600, max_retries=3)
            return "done"

        task = app.task(body, bind=True, key="a", unique="until_finish", unique_for=300, lease=5)
        first = task.delay()
        for _ in range(2):
            assert app.run()[0] == "RETRY"
            assert unique_locks()[0].ttl == pytest.approx(900, abs=3)
            assert task.delay().id == first.id
        assert app.run() == ("SUCCESS", "done")
        assert unique_locks() == []

    def test_held_across_the_pages_of_one_that_replaces_itself(self, app):
        """Each has the id of the first, whose result is that of the last."""

        def body(self, page=1):
            if page < 3:
                raise self.replace(self.s(page + 1))
            assert task.delay().id == first.id
            return "done"

        task = app.task(body, bind=True, key="a", unique="until_finish")
        first = task.delay()
        for _ in range(2):
            assert app.run()[0] == "IGNORED"
            assert task.delay().id == first.id
        assert app.run() == ("SUCCESS", "done")
        assert unique_locks() == []

    def test_until_start_is_over_with_the_first_try(self, app):
        def body(self):
            if not self.request.retries:
                raise self.retry(countdown=600)

        task = app.task(body, bind=True, key="a", unique="until_start")
        first = task.delay()
        assert app.run()[0] == "RETRY"
        second = task.delay()
        assert second.id != first.id
        assert app.run() == ("SUCCESS", None)
        assert task.delay().id == second.id  # whose lock the first one's second try left alone

    def test_a_retry_of_one_sent_by_name_is_always_sent(self, app):
        """Nobody knew that it was unique: it does not become so, or it would give way to another one and be lost."""

        def body(self):
            if not self.request.retries:
                raise self.retry(countdown=0)

        task = app.task(body, bind=True, key="a", unique="until_finish")
        app.app.send_task(task.name)
        message = app.take()
        other = task.delay()
        assert app.run(message)[0] == "RETRY"
        assert [each.id for each in app.all()] == [other.id, message.id]

    def test_postponed(self, app):
        task = app.task(key="a", unique="until_finish", on_conflict="retry", unique_for=300)
        first = task.delay()
        with TaskLock("a", timeout=50):
            assert elsewhere(app.run)[0] == "RETRY"
        assert task.delay().id == first.id
        assert unique_locks()[0].ttl >= 299
        assert app.run() == ("SUCCESS", "ran")
        assert unique_locks() == []

    @pytest.mark.django_db(transaction=True)
    @pytest.mark.parametrize(("until", "on_conflict"), [("until_start", "queue"), ("until_finish", "coalesce")])
    def test_parked(self, app, on_conflict, until):
        task = app.task(key="a", unique=until, on_conflict=on_conflict, unique_for=300)
        first = task.delay()
        with TaskLock("a"):
            elsewhere(app.run)
            assert [row.task_id for row in parked_messages("a")] == [first.id]
            assert task.delay().id == first.id
        assert promote("a", app.app)
        assert task.delay().id == first.id
        assert app.run() == ("SUCCESS", "ran")
        assert unique_locks() == []

    def test_the_first_message_comes_again(self, app):
        """After the second was published: the lock of that one is not touched."""
        task = app.task(key="a", unique="until_finish")
        task.delay()
        message = app.take()
        assert app.run(message) == ("SUCCESS", "ran")
        second = task.delay()
        assert app.run(message) == ("SUCCESS", "ran")  # it has not been acknowledged, for all this worker knows
        assert task.delay().id == second.id
        assert app.run() == ("SUCCESS", "ran")
        assert unique_locks() == []

    def test_two_messages_never_run_at_once_even_if_both_were_published(self, app):
        """In celery-once and celery-singleton the lock is the publisher's alone. docs/comparison.md has it."""
        ran: list[Any] = []
        task = app.task(lambda: ran.append(elsewhere(app.run)), key="a", unique="until_finish")
        task.delay()
        task.once(unique=None).delay()
        app.run()
        assert len(ran) == 1
        assert app.all() == []


class TestDropped:
    """By a worker that does not run it: a web server is deployed before the workers, say."""

    @pytest.fixture
    def here(self, celery_site):
        """``here(**options)``: a task that the worker does not know."""
        celery_site.worker()

        def make(**options: Any) -> Any:
            options = {"key": "a", "unique": "until_finish", **options}
            celery_site.app.task(base=OnceTask, name="only.here", shared=False, **options)(raise_)
            return celery_site.app.tasks["only.here"]

        return make

    @pytest.mark.broker
    @pytest.mark.parametrize("on_conflict", ["reject", "queue"])
    def test_as_unknown(self, celery_site, here, on_conflict):
        task = here(on_conflict=on_conflict)
        first = task.delay(None)
        assert celery_site.outcome(first)[0] == "FAILURE"
        celery_site.wait_until(lambda: not unique_locks())
        assert task.delay(None).id != first.id

    def test_with_its_place_in_the_line(self, celery_site, here):
        """Who comes after it does not wait for it."""
        here(on_conflict="queue").delay(None)
        celery_site.wait_until(lambda: not unique_locks())
        celery_site.wait_until(lambda: get_backend().count_before("a", 1 << 62) == 0, 5)

    @pytest.mark.broker
    def test_as_not_accepted(self, celery_site, here):
        first = here().apply_async((None,), serializer="yaml")
        celery_site.wait_until(lambda: not unique_locks())
        assert "only.here" in celery_site.workers[0].log()
        assert here().delay(None).id != first.id

    @pytest.mark.parametrize("state", ["SUCCESS", "FAILURE", "REVOKED"])
    def test_by_one_without_this_package(self, app, state):
        """It tells nobody. Its result does, unless that is of an earlier message with this id."""
        task = app.task(key="a", unique="until_finish")
        again, value = uuid(), None if state == "SUCCESS" else ValueError("no")
        app.app.backend.store_result(again, value, state)
        assert task.apply_async(task_id=again).id == task.delay().id == again

        app.app.backend.forget(again)  # what has succeeded is not stored again

        def publish_once_ended():
            app.app.backend.store_result(again, value, state)
            return (second := task.delay()).id != again and second

        second = eventually(publish_once_ended)
        assert task.delay().id == second.id
        assert [message.id for message in app.all()] == [again, second.id]

    @pytest.mark.parametrize("state", ["PENDING", "STARTED", "RETRY"])
    def test_one_that_goes_on(self, app, state):
        task = app.task(key="a", unique="until_finish")
        first = task.delay()
        app.app.backend.store_result(first.id, None, state)
        assert task.delay().id == first.id

    def test_while_it_runs_elsewhere(self, app):
        """A worker that does not know the task is given a copy of what another one runs."""

        def body():
            worker = type("Consumer", (), {"app": app.app})
            task_unknown.send(worker, message=SimpleNamespace(headers=message.headers))
            for thread in [one for one in threading.enumerate() if one.name == "tasklock-refused"]:
                thread.join()
            return len(unique_locks())

        app.task(body, key="a", unique="until_finish").delay()
        message = app.take()
        assert app.run(message) == ("SUCCESS", 1)


class TestOnDuplicate:
    def test_raise(self, app):
        """F45: a publisher can be told; celery-once and celery-singleton do."""
        task = app.task(key="a", unique="until_start", on_duplicate="raise")
        first = task.delay()
        with pytest.raises(AlreadyPublished, match="nothing is published") as told:
            task.delay()
        assert (told.value.task_id, told.value.name) == (first.id, f"unique:{task.name}:a")
        assert task.once(on_duplicate="return").delay().id == first.id
        assert len(app.all()) == 1

    def test_callbacks_that_are_not_called(self, app, caplog):
        task = app.task(key="a", unique="until_start")
        first = task.delay()
        assert task.apply_async(link=task.s()).id == first.id
        [said] = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
        assert "link" in said
        assert first.id in said


def test_a_member_of_a_group_is_always_published(app):
    """As is that of a chain or a chord: whoever was given an id beforehand is waited for."""
    task = app.task(lambda x: None, key="v:{x}", unique="until_finish")
    first = task.delay(1)
    result = group(task.s(1), task.s(1), task.s(2), app=app.app).apply_async()
    messages = app.all()
    assert [message.id for message in messages] == [first.id, *(each.id for each in result.children)]
    assert ["unique" in message.ours for message in messages] == [True, False, False, True]
    for message in messages:
        assert app.run(message) == ("SUCCESS", None)
    assert unique_locks() == []
