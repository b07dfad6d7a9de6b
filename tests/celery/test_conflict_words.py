"""A task whose lock is busy does what ``on_conflict`` says, and says so: no retry is spent, no row touched.

Outside of a message there is nothing to put aside: there the words of Celery raise.
"""

from __future__ import annotations

import pytest
from celery import Celery, chain

from django_tasklock import TaskLockAcquireError, task_lock
from django_tasklock.celery import parked_messages
from django_tasklock.celery.broker import visibility_timeout
from django_tasklock.celery.delivery import defer as busy
from django_tasklock.celery.delivery.defer import backoff
from django_tasklock.conf import WORDS
from tests.support.celery_site.redelivery_tasks import DECORATED, collect, late_once, linked, patient
from tests.support.guards import GUARD, held_by_another, states
from tests.support.once_app import once_app
from tests.testapp.models import Video

pytest_plugins = ["tests.support.celery_site.fixtures", "tests.support.redis_fixtures"]
pytestmark = [pytest.mark.redis]
SITE_TASKS = ["tests.support.celery_site.redelivery_tasks", "tests.support.celery_site.once_tasks"]


@pytest.fixture
def busy_site(celery_site):
    """A site with a worker, where ``hold:a`` is taken until ``gate_of_a`` opens."""
    celery_site.configure(lease=60)
    celery_site.worker(concurrency=3)
    celery_site.gate_of_a = celery_site.gate()
    celery_site.first = celery_site.publish("once_hold", "a", until=celery_site.gate_of_a)
    celery_site.started("a")
    return celery_site


def all_ways(word):
    """How a task of ours and a decorated one are told the word: name, and options of ``publish``."""
    return [("late_once", {"once": {"on_conflict": word}}), (f"late_{word}", {}), (f"early_{word}", {})]


class TestOnWorkers:
    def test_skip_raise_and_reject_say_so(self, busy_site):
        for task, more in all_ways("skip"):
            state, value = busy_site.outcome(busy_site.publish(task, "a", **more))
            assert (state, value["status"], value["reason"]) == ("SUCCESS", "skipped", "already_processing")
            assert value["name"] == "hold:a"
            assert busy_site.first.id in value["holder"]
        for word, expected in [("raise", "FAILURE"), ("reject", "REVOKED")]:
            for task, more in all_ways(word):  # one with autoretry_for=(Exception,), which is not for what is rejected
                result = busy_site.publish(task, "a", **more)
                state, error = busy_site.outcome(result)
                assert (state, type(error).__name__) == (expected, "TaskLockAcquireError")
                if word == "raise":
                    assert busy_site.first.id in str(error)
                else:
                    assert busy_site.workers[0].log().count(f"[{result.id}] received") == 1
        assert len(busy_site.events("start")) == 1
        assert busy_site.waiting() == 0

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

    def test_inside_of_another_task(self, busy_site):
        """That one's message is not to be put aside."""
        for word in WORDS:
            if word != "wait":
                expected = "skipped" if word == "skip" else "TaskLockAcquireError"
                assert busy_site.outcome(busy_site.publish("direct", word, "a")) == ("SUCCESS", expected)


class FakeMessage:
    """The part of a message that ``backoff`` reads."""

    def __init__(self, app, waits=0, delay=180):
        self.task = type("FakeTask", (), {"app": app, "default_retry_delay": delay})
        self.header = {"waits": waits}


class TestPause:
    """Seconds until the next try."""

    @pytest.mark.parametrize(
        ("waits", "delay", "seconds"),
        [(0, 180, 1.25), (3, 180, 10), (99, 180, 75), (9, 7, 8.75), (9, 9000, 1800)],
    )
    def test_soon_and_then_later(self, monkeypatch, waits, delay, seconds):
        """F42: it came back when the holder's lease would have ended, a minute after a body of half a second.

        ``default_retry_delay`` counts, up to half of Redis's visibility timeout of an hour.
        """
        monkeypatch.setattr(busy.random, "uniform", lambda low, high: high)
        app = Celery(broker="redis://h/0", set_as_current=False)
        assert backoff(FakeMessage(app, waits, delay)) == pytest.approx(seconds)

    def test_it_is_drawn(self):
        """Many that meet the same holder do not come back together."""
        app = Celery(broker="redis://h/0", set_as_current=False)
        drawn = {backoff(FakeMessage(app)) for _ in range(20)}
        assert len(drawn) > 10
        assert all(1 <= seconds <= 1.25 for seconds in drawn)

    @pytest.mark.parametrize(
        ("conf", "options", "seconds"),
        [
            ({"broker_url": ["redis://a/0", "redis://b/0"]}, {}, 3600),
            ({"broker_url": "sentinel://h"}, {}, 3600),
            ({"broker_url": "redis://h/0"}, {"visibility_timeout": 5}, 5),
            ({"broker_url": "amqp://h"}, {"visibility_timeout": 5}, float("inf")),
            ({"broker_read_url": "redis://h/0", "broker_write_url": "amqp://h"}, {}, 3600),
        ],
    )
    def test_the_visibility_timeout_of_a_broker(self, conf, options, seconds):
        app = Celery(set_as_current=False)
        app.conf.update(conf, broker_transport_options=options)
        assert visibility_timeout(app) == seconds


@pytest.mark.parametrize("word", ["retry", "reject", "queue", "coalesce"])
class TestOutsideOfAMessage:
    """Nobody there can put a message aside."""

    def test_a_function(self, name, word):
        work = task_lock(name, on_conflict=word)(lambda: "done")
        assert work() == "done"
        with held_by_another(name), pytest.raises(TaskLockAcquireError):
            work()

    def test_eagerly(self, celery_site, word):
        with held_by_another("hold:a"):
            result = DECORATED[word][0].apply(("a",))
            assert isinstance(result.result, TaskLockAcquireError)
            once = late_once.apply(("a",), once={"on_conflict": word})
        if word != "reject":
            assert isinstance(once.result, TaskLockAcquireError)
        assert celery_site.events() == []
        assert parked_messages() == []


@pytest.mark.database
@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("word", ["skip", "reject", "retry", "queue", "coalesce"])
def test_a_guarded_row_is_not_touched(name, word):
    """It has not failed."""
    with once_app() as app:
        video = Video.objects.create(status="uploading")
        before = states(video)
        task = app.task(lambda pk: None, key=name, guard=GUARD, model=Video, on_conflict=word)
        task.delay(video.pk)
        with held_by_another(name):
            app.run()
        assert states(video) == before
