"""A task whose lock is busy does what ``on_conflict`` says, and says so: no retry is spent, no row touched.

Outside of a message there is nothing to put aside: there the words of Celery raise.
"""

from __future__ import annotations

import time

import pytest
from celery import Celery, chain, chord, group
from django.http import HttpRequest, HttpResponse

from django_tasklock import TaskLockAcquireError, counts, task_lock
from django_tasklock.celery import parked_messages
from django_tasklock.celery.broker import visibility_timeout
from django_tasklock.celery.delivery import defer as busy
from django_tasklock.celery.delivery.defer import backoff
from django_tasklock.conf import WORDS
from django_tasklock.signals import lock_conflict
from tests.support.celery_site.journal import most_at_once
from tests.support.celery_site.redelivery_tasks import DECORATED, collect, late_once, linked, patient
from tests.support.guards import GUARD, held_by_another, states
from tests.support.once_app import once_app
from tests.support.public import Received
from tests.testapp.models import Video

pytest_plugins = ["tests.support.celery_site.fixtures", "tests.support.redis_fixtures"]
pytestmark = [pytest.mark.redis]
SITE_TASKS = ["tests.support.celery_site.redelivery_tasks", "tests.support.celery_site.once_tasks"]

CELERYS = ("retry", "reject", "queue", "coalesce")


def said(worker, text, times=1):
    return worker.log().count(text) >= times


@pytest.fixture
def busy_site(celery_site):
    """A site with a worker, where ``hold:a`` is taken until ``gate`` opens."""
    celery_site.configure(lease=60)
    celery_site.worker(concurrency=3)
    celery_site.gate_of_a = celery_site.gate()
    celery_site.first = celery_site.publish("once_hold", "a", until=celery_site.gate_of_a)
    celery_site.started("a")
    return celery_site


def both(word):
    """How a task of ours and a decorated one are told the word: name, and options of ``publish``."""
    return [("late_once", {"once": {"on_conflict": word}}), (f"late_{word}", {}), (f"early_{word}", {})]


def test_skip_and_raise_say_so(busy_site):
    for task, more in both("skip"):
        state, value = busy_site.outcome(busy_site.publish(task, "a", **more))
        assert (state, value["status"], value["reason"]) == ("SUCCESS", "skipped", "already_processing")
        assert value["name"] == "hold:a"
        assert busy_site.first.id in value["holder"]
    for task, more in both("raise"):
        state, error = busy_site.outcome(busy_site.publish(task, "a", **more))
        assert state == "FAILURE"
        assert type(error).__name__ == "TaskLockAcquireError"
        assert busy_site.first.id in str(error)
    assert len(busy_site.events("start")) == 1


class TestWait:
    def test_it_is_woken_by_the_release(self, busy_site):
        result = busy_site.publish("late_once", "a", once={"on_conflict": "wait"})
        busy_site.wait_until(lambda: busy_site.lock("hold:a").waiting == 1)
        busy_site.gate_of_a.open()
        end = busy_site.wait_until(lambda: busy_site.events("end", "a"))[0]
        assert busy_site.started("a", 2).time - end.time < 1
        assert busy_site.outcome(result)[1]["status"] == "success"
        assert most_at_once(busy_site.events(key="a")) == 1

    def test_not_for_ever(self, busy_site):
        once = {"on_conflict": "wait", "blocking_timeout": 0.5}
        asked = time.monotonic()
        state, error = busy_site.outcome(busy_site.publish("late_once", "a", once=once))
        assert state == "FAILURE"
        assert type(error).__name__ == "TaskLockAcquireError"
        assert 0.4 < time.monotonic() - asked < 10


class TestReject:
    def test_retrying_for_everything_is_not_retrying_for_that(self, busy_site):
        for task, more in both("reject"):
            result = busy_site.publish(task, "a", **more)  # one of them with autoretry_for=(Exception,)
            state, error = busy_site.outcome(result)
            assert (state, type(error).__name__) == ("REVOKED", "TaskLockAcquireError")
            assert not said(busy_site.workers[0], f"[{result.id}] received", 2)
        assert len(busy_site.events("start")) == 1
        assert busy_site.waiting() == 0

    def test_a_member_of_a_group_or_chord_is_skipped(self, busy_site):
        """Whoever waits for its result would wait for ever."""
        header = [late_once.s("a"), late_once.s("b")]
        members = [result.get(timeout=20) for result in group(header).apply_async().results]
        assert [value["status"] for value in members] == ["skipped", "success"]
        values = chord(header)(collect.s("c")).get(timeout=20)
        assert sorted(value["status"] for value in values) == ["skipped", "success"]


class TestRetry:
    def test_soon(self, busy_site):
        """F42: whatever is left of the holder's lease."""
        result = patient.apply_async(("a",))
        busy_site.wait_until(lambda: result.state == "RETRY")
        busy_site.wait_until(lambda: said(busy_site.workers[0], "is busy, again in "))
        seconds = busy_site.workers[0].log().split("is busy, again in ")[1].partition(" s")[0]
        assert 1 <= float(seconds) <= 1.3
        assert len(busy_site.events("start", "a")) == 1

    def test_a_retry_after_a_conflict_runs_as_it_was_published(self, celery_site):
        """With its place in a chain, its callbacks, its priority, and none of its own retries spent (8.24)."""
        celery_site.worker(concurrency=2)
        with held_by_another("hold:a", lease=None, timeout=3):
            steps = chain(patient.s("a").set(priority=3, link=linked.s("after")), collect.s("end"))
            result = steps.apply_async()
            celery_site.wait_until(lambda: result.parent.state == "RETRY")
        start = celery_site.started("a")
        assert start.task_id == result.parent.id
        assert start.more == {"retries": 0, "priority": 3, "queue": celery_site.queue()}
        assert celery_site.outcome(result)[0] == "SUCCESS"
        celery_site.wait_until(lambda: celery_site.events("linked", "after"))
        assert len(celery_site.events("collected", "end")) == 1

    def test_it_ends_when_the_holder_dies(self, celery_site):
        """Killed, and with it its heartbeat: the lease frees the lock, and one try after that has it."""
        celery_site.configure(lease=4)
        holder = celery_site.worker(queues=("other",))
        other = {"queue": celery_site.queue("other")}
        celery_site.publish("once_hold", "a", until=celery_site.gate(), options=other)
        celery_site.started("a")
        celery_site.worker()
        result = celery_site.publish("late_once", "a", once={"on_conflict": "retry"})
        celery_site.wait_until(lambda: result.state == "RETRY")
        holder.kill()
        assert celery_site.outcome(result)[1]["status"] == "success"
        assert celery_site.locks.keys("task_lock:*") == []


class FakeMessage:
    """The part of a message that ``backoff`` reads."""

    def __init__(self, app, waits=0, delay=180):
        self.task = type("FakeTask", (), {"app": app, "default_retry_delay": delay})
        self.header = {"waits": waits}


class TestPause:
    """Seconds until the next try."""

    @pytest.fixture(autouse=True)
    def _drawn(self, monkeypatch):
        monkeypatch.setattr(busy.random, "uniform", lambda low, high: high)

    @pytest.mark.parametrize(("waits", "seconds"), [(0, 1.25), (3, 10), (6, 75), (99, 75)])
    def test_soon_and_then_later(self, celery_site, waits, seconds):
        """F42: it came back when the holder's lease would have ended, a minute after a body of half a second."""
        assert backoff(FakeMessage(celery_site.app, waits)) == pytest.approx(seconds)

    @pytest.mark.parametrize(("delay", "seconds"), [(7, 8.75), (9000, 1800)])
    def test_the_tasks_own_delay(self, celery_site, delay, seconds):
        """F42: ``default_retry_delay`` counts, up to half of Redis's visibility timeout of an hour."""
        assert backoff(FakeMessage(celery_site.app, 9, delay)) == pytest.approx(seconds)


class TestTheVisibilityTimeout:
    """Kombu knows which broker an address leads to."""

    @pytest.mark.parametrize(
        ("url", "options", "seconds"),
        [
            ("redis://h/0", {}, 3600),
            ("redis+socket:///run/redis.sock", {}, 3600),
            ("sentinel://h", {}, 3600),
            (["redis://a/0", "redis://b/0"], {}, 3600),
            ("amqp://h", {}, float("inf")),
            ("redis://h/0", {"visibility_timeout": 5}, 5),
            ("amqp://h", {"visibility_timeout": 5}, float("inf")),
        ],
    )
    def test_by_the_address(self, url, options, seconds):
        app = Celery(broker=url, set_as_current=False)
        app.conf.broker_transport_options = options
        assert visibility_timeout(app) == seconds

    def test_of_the_broker_that_messages_are_read_from(self):
        app = Celery(set_as_current=False)
        app.conf.update(broker_read_url="redis://h/0", broker_write_url="amqp://h")
        assert visibility_timeout(app) == 3600


def test_it_is_drawn(celery_site):
    """Many that meet the same holder do not come back together."""
    drawn = {backoff(FakeMessage(celery_site.app)) for _ in range(20)}
    assert len(drawn) > 10
    assert all(1 <= seconds <= 1.25 for seconds in drawn)


class TestOutsideOfCelery:
    """Nobody there can put a message aside."""

    @pytest.mark.parametrize("word", CELERYS)
    def test_a_function(self, celery_site, word):
        @task_lock("hold:{key}", on_conflict=word)
        def work(key: str) -> str:
            return "done"

        def view(request: HttpRequest) -> HttpResponse:
            return HttpResponse(work("a"))

        assert work("a") == "done"
        assert view(HttpRequest()).content == b"done"
        with held_by_another("hold:a"):
            for call in (lambda: work("a"), lambda: view(HttpRequest()), lambda: DECORATED[word][0]("a")):
                with pytest.raises(TaskLockAcquireError):
                    call()

    @pytest.mark.parametrize("word", CELERYS)
    def test_eagerly(self, celery_site, word):
        with held_by_another("hold:a"):
            result = DECORATED[word][0].apply(("a",))
            assert isinstance(result.result, TaskLockAcquireError)
            once = late_once.apply(("a",), once={"on_conflict": word})
        if word != "reject":
            assert isinstance(once.result, TaskLockAcquireError)
        assert celery_site.events() == []
        assert parked_messages() == []


class TestTheRow:
    """A guarded row is given back, or not touched, when its message is put aside; it has not failed."""

    @pytest.mark.database
    @pytest.mark.django_db(transaction=True)
    @pytest.mark.parametrize("word", ["skip", "reject", "retry", "queue", "coalesce"])
    def test_is_not_touched(self, name, word):
        with once_app() as app:
            video = Video.objects.create(status="uploading")
            before = states(video)
            task = app.task(lambda pk: None, key=name, guard=GUARD, model=Video, on_conflict=word)
            task.delay(video.pk)
            with held_by_another(name):
                app.run()
            assert states(video) == before

    def test_is_given_back_by_a_duplicate_inside(self, celery_site):
        """A body that claimed its row meets its own message in a lock further in."""
        celery_site.worker(concurrency=2)
        video, gate = Video.objects.create(status="uploading"), celery_site.gate()
        celery_site.publish("outer", "a", until=gate, options={"task_id": "same"})
        celery_site.started("a")
        celery_site.locks.set(
            "task_lock:hold:b", celery_site.locks.get("task_lock:hold:a").replace(b".outer", b".guarded_outer")
        )
        celery_site.publish("guarded_outer", video.pk, "b", options={"task_id": "same"})
        celery_site.wait_until(lambda: said(celery_site.workers[0], "duplicate: "))
        celery_site.wait_until(lambda: celery_site.lock(f"video:{video.pk}") is None)
        video.refresh_from_db()
        assert video.status == GUARD.retry

    def test_inside_of_another_task(self, busy_site):
        """That one's message is not to be put aside either."""
        for word in WORDS:
            if word != "wait":
                expected = "skipped" if word == "skip" else "TaskLockAcquireError"
                assert busy_site.outcome(busy_site.publish("direct", word, "a")) == ("SUCCESS", expected)


class TestCounted:
    def test_signals_and_counters(self, celery_site):
        """In this process; a worker does the same in its own."""
        counts.forget()
        with held_by_another("hold:a"), Received(lock_conflict) as received:
            late_once.apply(("a",), once={"on_conflict": "reject"})
            late_once.apply(("a",), once={"on_conflict": "retry"})
            late_once.apply(("a",), once={"on_conflict": "skip"})
        assert [one["action"] for one in received] == ["reject", "raise", "skip"]
        found = {one.event: one.number for one in counts.pending()}
        assert [found[f"conflict:{word}"] for word in ("reject", "raise", "skip")] == [1, 1, 1]
