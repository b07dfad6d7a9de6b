"""A message whose body cannot begin is put off, and fails only once that has lasted for its task's patience."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest
import redis
from celery.contrib.django.task import DjangoTask
from django.db import OperationalError, connection, transaction
from kombu.exceptions import OperationalError as BrokerDown

from django_tasklock import (
    BackendUnavailable,
    StateGuard,
    TaskLock,
    TaskLockError,
    concurrency_limited,
    current_lock,
    model_lock,
    rate_limited,
    task_lock,
)
from django_tasklock.backends.memory import reset
from django_tasklock.celery import count_parked, sending
from django_tasklock.celery.delivery import defer
from django_tasklock.celery.queue.promoter import Promoter
from django_tasklock.celery.rates import Turn
from django_tasklock.db import reconnect
from django_tasklock.decorators.call import Closing
from django_tasklock.host import Task
from tests.support.celery_site.site import Site
from tests.support.guards import GUARD, MEMORY, held_by_another
from tests.support.once_app import OnceApp, once_app
from tests.support.redis_server import free_port
from tests.testapp.models import Video

pytest_plugins = ["tests.support.celery_site.fixtures"]
SITE_TASKS = [
    "tests.support.celery_site.limited_tasks",
    "tests.support.celery_site.once_tasks",
    "tests.support.celery_site.rated_tasks",
]

REFUSALS: dict[str, tuple[list[str], str]] = {
    "a demoted primary": (["REPLICAOF 127.0.0.1 1"], "REPLICAOF NO ONE"),
    "a password that is being changed": (
        ["CONFIG SET requirepass new", "CLIENT KILL TYPE normal"],
        "CONFIG SET requirepass ''",
    ),
    "rights that were taken": (["ACL SETUSER default -@scripting"], "ACL SETUSER default +@scripting"),
}


@contextmanager
def refusing(url: str, how: str) -> Iterator[None]:
    """The server answers, and refuses what locks need."""
    begin, end = REFUSALS[how]
    with redis.Redis.from_url(url, single_connection_client=True) as operator:
        for command in begin:
            operator.execute_command(*command.split())
        try:
            yield
        finally:
            operator.execute_command(*(part.strip("'") for part in end.split()))


def publish_all(site: Site) -> dict[str, Any]:
    """Two messages of each kind; the results by key."""
    videos = [Video.objects.create() for _ in range(2)]
    results = {f"video {video.pk}": site.publish("guarded_hold", video.pk) for video in videos}
    for task in ("once_hold", "queued_hold", "limited", "rated_fast"):
        results |= {f"{task} {n}": site.publish(task, f"{task}-{n}") for n in range(2)}
    return results


def each_ran_once(site: Site, results: dict[str, Any]) -> None:
    ends = {key: site.outcome(result, 60) for key, result in results.items()}
    assert all(state == "SUCCESS" and value["status"] == "success" for state, value in ends.values()), ends
    began = Counter(event.task_id for event in site.events("start"))
    assert {key: began[result.id] for key, result in results.items()} == dict.fromkeys(results, 1)
    assert {video.status for video in Video.objects.all()} == {"ready"}


@pytest.mark.workers
@pytest.mark.parametrize("how", REFUSALS)
def test_a_store_that_refuses_for_a_while_uses_no_message_up(celery_site, how):
    worker = celery_site.worker(concurrency=4)
    with refusing(celery_site.lock_store.url, how):
        results = publish_all(celery_site)
        celery_site.wait_until(lambda: all(f"[{one.id}] is put off" in worker.log() for one in results.values()))
        assert not celery_site.events("start")
    each_ran_once(celery_site, results)


@pytest.mark.workers
def test_a_broker_that_refuses_as_well_loses_none(celery_site):
    """The store is the broker's Redis. Celery's worker may end of it, and gives back what it has; another goes on."""
    celery_site.configure(tasklock={"LOCATION": celery_site.broker.url, "MESSAGE_LEASE": 5})
    worker, gate = celery_site.worker(concurrency=2, prefetch=6), celery_site.gate()
    for key in ("first", "second"):
        celery_site.publish("hold", key, until=gate)
        celery_site.started(key)
    results = {f"late {n}": celery_site.publish("late_hold", f"late-{n}") for n in range(4)}
    video = Video.objects.create()
    results["video"] = celery_site.publish("guarded_hold", video.pk)
    celery_site.wait_until(lambda: not celery_site.waiting())
    with refusing(celery_site.broker.url, "a demoted primary"):
        gate.open()
        celery_site.wait_until(lambda: "cannot be sent again now" in worker.log() or not worker.alive())
    celery_site.worker(concurrency=2)
    each_ran_once(celery_site, results)


@pytest.fixture
def app(settings: Any) -> Iterator[OnceApp]:
    settings.TASKLOCK = MEMORY
    reset()
    with once_app() as made:
        made.app.set_current()
        yield made


@pytest.fixture
def down(settings: Any) -> Callable[[], Any]:
    """``down()``: a block in which the store cannot be reached, and no body is to run without it."""

    @contextmanager
    def block() -> Iterator[None]:
        settings.TASKLOCK = {"LOCATION": f"redis://127.0.0.1:{free_port()}/0", "ON_UNAVAILABLE": "raise"}
        yield
        settings.TASKLOCK = MEMORY

    return block


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time that a worker reads."""
    now = [1e9]
    monkeypatch.setattr(defer, "time", SimpleNamespace(time=lambda: now[0]))
    return now


def make(app: OnceApp, kind: str, body: Callable[[], Any] = lambda: "ran", **options: Any) -> Any:
    """A task of that kind."""

    def work(pk: int = 1) -> Any:
        return body()

    if kind == "once":
        return app.task(work, key="put-off", **options)
    decorator = {
        "locked": task_lock("put-off"),
        "guarded": model_lock(Video, "video:{pk}", guard=GUARD),
        "limited": concurrency_limited("put-off", 1),
        "rated": rate_limited("put-off", "100/s"),
    }[kind]
    return app.task(decorator(work), base=DjangoTask, **options)


KINDS = ("once", "locked", "guarded", "limited", "rated")
quick = pytest.mark.quick


@quick
@pytest.mark.django_db(transaction=True)
class TestTheStore:
    @pytest.mark.parametrize("kind", KINDS)
    def test_it_is_the_same_try_again(self, app, down, kind, caplog):
        task = make(app, kind)
        result = task.delay(Video.objects.create().pk)
        with down():
            state, again = app.run()
        assert (state, again.when) == ("RETRY", 0.5)
        assert f"{task.name}[{result.id}] is put off: " in caplog.text
        message = app.take()
        assert (message.id, message.headers["retries"]) == (result.id, 0)
        assert app.run(message) == ("SUCCESS", "ran")
        assert app.all() == []

    @pytest.mark.parametrize("kind", KINDS)
    @pytest.mark.parametrize(
        ("options", "seconds"), [({}, 1800), ({"patience": timedelta(minutes=1)}, 60)], ids=["default", "own"]
    )
    def test_it_fails_after_the_patience(self, app, down, clock, kind, options, seconds):
        make(app, kind, **options).delay(Video.objects.create().pk)
        pauses = []
        with down():
            while (end := app.run())[0] == "RETRY":
                pauses.append(end[1].when)
                clock[0] += end[1].when
        assert (end[0], type(end[1])) == ("FAILURE", BackendUnavailable)
        assert f"the message was put off for {seconds} s" in str(end[1])
        assert (pauses[:6], sum(pauses)) == ([0.5, 0.5, 1, 2, 4, 8], seconds)
        assert max(pauses) <= 60
        assert app.all() == []

    @pytest.mark.parametrize("word", ["queue", "coalesce"])
    def test_what_has_a_place_in_line_keeps_it_in_the_table(self, app, down, clock, word):
        task = make(app, "once", on_conflict=word, patience=10)
        task.delay()
        with down():
            assert app.run()[0] == "IGNORED"
        assert (count_parked("put-off"), app.all()) == (1, [])
        assert Promoter(app.app).poll() == 1
        message = app.take()
        clock[0] += 10
        with down():
            assert app.run(message)[0] == "FAILURE", "it was put off for its patience"
        assert app.run(message) == ("SUCCESS", "ran")
        assert count_parked("put-off") == 0

    def test_nobody_fails_because_the_table_is_full(self, app, down):
        task = make(app, "once", on_conflict="queue", queue_limit=1)
        for _ in range(2):
            task.delay()
        with down():
            assert [app.run()[0] for _ in range(2)] == ["IGNORED", "RETRY"]

    def test_then_it_may_be_retried_and_has_its_patience_again(self, app, down, clock):
        make(app, "locked", patience=10, autoretry_for=(BackendUnavailable,), retry_backoff=False).delay()
        with down():
            app.run()
            clock[0] += 10
            assert isinstance(app.run()[1].exc, BackendUnavailable)
            assert app.run()[1].when == 0.5

    def test_its_patience_begins_anew_once_something_else_held_it_up(self, app, down, clock):
        make(app, "once", on_conflict="retry").delay()
        with down():
            app.run()
        clock[0] += 1000
        with held_by_another("put-off"):
            assert app.run()[0] == "RETRY"
        clock[0] += 1000
        with down():
            assert app.run()[1].when == 0.5
        assert app.run() == ("SUCCESS", "ran")

    def test_to_skip_was_its_authors_choice(self, app, down):
        make(app, "once", on_unavailable="skip").delay()
        with down():
            assert app.run()[1]["reason"] == "lock_unavailable"

    def test_a_call_has_no_message(self, app, down):
        with down(), pytest.raises(BackendUnavailable):
            make(app, "once")()
        with down(), pytest.raises(BackendUnavailable):
            make(app, "locked").apply(throw=True)

    def test_what_a_body_asks_for_is_its_own(self, app, down):
        def body() -> None:
            with down():
                task_lock("inner")(lambda: None)()

        make(app, "locked", body).delay()
        state, error = app.run()
        assert (state, type(error)) == ("FAILURE", BackendUnavailable)
        assert app.all() == []

    @pytest.mark.parametrize("acks_late", [True, False])
    def test_it_is_not_a_duplicate_of_its_own_request(self, app, down, acks_late):
        """Whose answer was lost, so that the lock is held by this process, which gives it back as soon as it can."""
        make(app, "once", acks_late=acks_late).delay()
        with down():
            app.run()
        message = app.take()
        with held_by_another("put-off", task=Task(message.task, message.id, 0)):
            for _ in range(2):
                app.run(message)
                message = app.take()
        assert app.run(message) == ("SUCCESS", "ran")

    @pytest.mark.parametrize("kind", ["once", "locked", "rated"])
    @pytest.mark.parametrize("patience", [0, -1, "long", None])
    def test_a_patience_that_is_none(self, app, kind, patience):
        with pytest.raises(TaskLockError, match=r"task .*: patience must be"):
            make(app, kind, patience=patience)


@quick
@pytest.mark.django_db(transaction=True)
class TestTheLock:
    @pytest.mark.parametrize("kind", ["locked", "rated"])
    def test_one_that_is_lost_before_the_body_begins(self, app, kind, monkeypatch):
        def work() -> str:
            return "ran"

        def lose(*args: Any) -> bool:
            current_lock().lease.mark_lost("a test")
            return True

        ran = rate_limited("put-off", "100/s")(work) if kind == "rated" else work
        task = app.task(task_lock("put-off")(ran), base=DjangoTask)
        task.delay()
        with monkeypatch.context() as patch:
            if kind == "rated":
                patch.setattr(Turn, "take", lose)
            else:
                patch.setattr(Closing, "claim_row", lose)
            state, error = app.run()
        assert (state, "a test" in str(error)) == ("RETRY", True)
        assert app.run() == ("SUCCESS", "ran")


def refuse(times: list[None], sqlstate: str, tick: Callable[[], None] = lambda: None) -> Any:
    """A wrapper of statements that refuses an UPDATE of a guarded row while ``times`` has entries."""

    def execute(execute: Any, sql: str, params: Any, many: bool, context: Any) -> Any:
        if times and sql.startswith("UPDATE") and "lock_token" in sql:
            times.pop()
            tick()
            raise OperationalError("refused") from type("Driver", (Exception,), {"sqlstate": sqlstate})()
        return execute(sql, params, many, context)

    return connection.execute_wrapper(execute)


@quick
@pytest.mark.django_db(transaction=True)
class TestTheDatabase:
    @pytest.mark.parametrize("sqlstate", ["57P03", "53300", "25006"], ids=["starting up", "no room", "read-only"])
    def test_one_that_refuses_the_claim(self, app, sqlstate):
        video = Video.objects.create()
        make(app, "guarded").delay(video.pk)
        with refuse([None] * 9, sqlstate):
            assert app.run()[0] == "RETRY"
        video.refresh_from_db()
        assert (video.status, TaskLock(f"video:{video.pk}").locked()) == ("uploading", False)
        assert app.run() == ("SUCCESS", "ran")
        video.refresh_from_db()
        assert video.status == "ready"

    @pytest.mark.parametrize("options", [{}, {"patience": 60}], ids=["default", "own"])
    @pytest.mark.parametrize("sqlstate", ["55P03", "57P03"], ids=["row locked", "unreachable"])
    def test_the_closing_write_has_the_patience_of_the_task(self, app, monkeypatch, options, sqlstate):
        now = [1000.0]

        def sleep(seconds: float) -> None:
            now[0] += seconds

        monkeypatch.setattr(reconnect, "time", SimpleNamespace(monotonic=lambda: now[0], sleep=sleep))
        video, times = Video.objects.create(), []
        with ExitStack() as stack:

            def body() -> str:
                times.extend([None] * 100)
                stack.enter_context(refuse(times, sqlstate, lambda: sleep(10)))
                return "ran"

            make(app, "guarded", body, **options).delay(video.pk)
            state, value = app.run()
        video.refresh_from_db()
        if options:
            assert (state, type(value), video.status) == ("FAILURE", OperationalError, "processing")
            assert 60 <= now[0] - 1000 < 120
        else:
            assert (state, value, video.status) == ("SUCCESS", "ran", "ready")
            assert now[0] - 1000 > 1000


@quick
@pytest.mark.django_db(transaction=True)
class TestTheState:
    """A message may overtake the commit of the state that it is for, as it may overtake that of its row."""

    GUARD = StateGuard(claim_from=["uploading"], claim_as="processing", done="ready", missing_timeout=5)

    def task(self, app: OnceApp) -> Any:
        return app.task(model_lock(Video, "video:{pk}", guard=self.GUARD)(lambda pk: "ran"), base=DjangoTask)

    @pytest.mark.parametrize("inside", [True, False])
    def test_is_waited_for_if_it_was_published_inside_of_a_transaction(self, app, clock, inside):
        video, task = Video.objects.create(status="ready"), self.task(app)
        with transaction.atomic() if inside else nullcontext():
            task.delay(video.pk)
        if inside:
            assert [app.run()[1].when for _ in range(2)] == [0.5, 0.5]
            Video.objects.update(status="uploading")
            assert app.run() == ("SUCCESS", "ran")
        else:
            assert app.run()[1]["reason"] == "invalid_state"
        assert app.all() == []

    def test_and_is_skipped_if_it_stays(self, app, clock):
        video, task = Video.objects.create(status="ready"), self.task(app)
        with transaction.atomic():
            task.delay(video.pk)
        waited = 0.0
        while (end := app.run())[0] == "RETRY":
            clock[0] += end[1].when
            waited += end[1].when
        assert (end[0], end[1]["reason"], waited) == ("SUCCESS", "invalid_state", 5)

    def test_not_for_a_later_try(self, app):
        def body(pk: int) -> None:
            Video.objects.filter(pk=pk).update(status="ready")
            raise tasks[0].retry(countdown=0)

        tasks = [app.task(model_lock(Video, "video:{pk}", guard=self.GUARD)(body), base=DjangoTask)]
        video = Video.objects.create()
        with transaction.atomic():
            tasks[0].delay(video.pk)
        assert app.run()[1].when == 0
        Video.objects.update(status="ready")
        assert app.run()[1]["reason"] == "invalid_state"


@quick
class TestTheBroker:
    def test_one_that_takes_nothing_is_asked_until_it_does(self, app, down, monkeypatch):
        pauses: list[float] = []
        monkeypatch.setattr(sending, "time", SimpleNamespace(monotonic=lambda: sum(pauses), sleep=pauses.append))
        task, refused = make(app, "once", patience=60), [None] * 6
        send = type(task).apply_async

        def apply_async(self: Any, *args: Any, **options: Any) -> Any:
            if refused:
                refused.pop()
                raise BrokerDown("READONLY")
            return send(self, *args, **options)

        task.delay()
        message = app.take()
        monkeypatch.setattr(type(task), "apply_async", apply_async)
        with down():
            assert app.run(message)[0] == "RETRY"
            assert pauses == [0.5, 1, 2, 4, 5, 5]
            refused.extend([None] * 100)
            state, error = app.run()
        assert (state, type(error)) == ("FAILURE", BrokerDown)
        assert 50 < sum(pauses) - 17.5 <= 60
