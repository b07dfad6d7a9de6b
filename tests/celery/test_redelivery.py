"""One message, several deliveries to real workers, of a slow run, a dead one, an earlier try: one runs, none skips."""

from __future__ import annotations

import json
import time

import pytest
from celery import chord
from celery.worker.request import Request

from django_tasklock.celery import parked_messages
from django_tasklock.celery.message import RECEIVED
from django_tasklock.celery.messages.marks import read_marks
from django_tasklock.types import monotonic
from tests.support.celery_site.courier import Courier
from tests.support.celery_site.journal import most_at_once
from tests.support.celery_site.redelivery_tasks import DECORATED, MACHINE, collect, late_once
from tests.testapp.models import Video

pytest_plugins = ["tests.support.celery_site.fixtures"]
pytestmark = [pytest.mark.redis]
SITE_TASKS = ["tests.support.celery_site.redelivery_tasks", "tests.support.celery_site.once_tasks"]

ONCE = ("skip", "wait", "reject", "coalesce")
DECORATED_ONES = ("skip", "raise", "retry", "queue")
AGAIN = "duplicate: "


def said(worker, text, times=1):
    return worker.log().count(text) >= times


def nothing_is_left(site):
    # A row whose result is being stored is left alone for a minute.
    site.wait_until(lambda: not parked_messages() and not site.locks.keys("task_lock:*"), 120)


class TestTheFirstLives:
    """The visibility timeout brings a message again whose task still runs."""

    @pytest.mark.quick
    def test_a_worker_with_one_slot(self, celery_site):
        """The other delivery lies in the worker's buffer until the first has finished."""
        celery_site.configure(visibility_timeout=1)
        worker, gate = celery_site.worker(concurrency=1, prefetch=4), celery_site.gate()
        result = celery_site.publish("late_once", "a", until=gate)
        celery_site.wait_until(lambda: said(worker, f"late_once[{result.id}] received", 2))
        gate.open()
        celery_site.wait_until(lambda: said(worker, "it has ended"))
        assert celery_site.result(result).result["status"] == "success"
        assert len(celery_site.events("start", "a")) == 1
        nothing_is_left(celery_site)

    @pytest.mark.quick
    @pytest.mark.filterwarnings("ignore:Call to deprecated setex:DeprecationWarning")  # by Celery's results
    def test_the_first_lies_in_the_buffer_of_a_worker_that_is_stopped(self, celery_site):
        """For longer than the lease of its messages: another one has been given what it could not renew."""
        celery_site.configure(tasklock={"MESSAGE_LEASE": 60})
        courier = Courier(celery_site)
        celery_site.publish("late_once", "a")
        first = courier.take()
        Request(first.message, app=celery_site.app, hostname="another", decoded=False).execute()
        first.request_dict[RECEIVED] = monotonic() - 61
        first.execute()
        assert len(celery_site.events("start", "a")) == 1

    def test_both_wait_for_the_lock_of_another(self, celery_site):
        celery_site.configure(visibility_timeout=1)
        worker, gate = celery_site.worker(concurrency=3), celery_site.gate()
        celery_site.publish("once_hold", "a", until=gate)
        celery_site.started("a")
        result = celery_site.publish("late_once", "a", once={"on_conflict": "wait"})
        celery_site.wait_until(lambda: said(worker, f"late_once[{result.id}] received", 2))
        celery_site.wait_until(lambda: celery_site.lock("hold:a").waiting == 2)
        gate.open()
        assert celery_site.outcome(result)[1]["status"] == "success"
        celery_site.wait_until(lambda: said(worker, AGAIN))
        assert len(celery_site.events("start", "a")) == 2
        assert most_at_once(celery_site.events(key="a")) == 1

    def test_members_of_a_chord(self, celery_site):
        """Of ours, and decorated: a duplicate is dropped although the word is skip."""
        celery_site.configure(visibility_timeout=1)
        worker, gate = celery_site.worker(concurrency=4), celery_site.gate()
        members = late_once.s("a", until=gate), DECORATED["skip"][0].s("b", until=gate)
        result = chord(members)(collect.s("c"))
        celery_site.wait_until(lambda: said(worker, AGAIN, 2))
        assert celery_site.events("collected") == []
        gate.open()
        state, value = celery_site.outcome(result)
        assert state == "SUCCESS"
        assert sorted((member["key"], member["status"]) for member in value) == [("a", "success"), ("b", "success")]
        celery_site.publish("late_once", "last")  # whatever came before it has been dealt with
        celery_site.started("last")
        assert len(celery_site.events("collected")) == 1
        assert len(celery_site.events("start")) == 3


class TestTheFirstDied:
    """Its lock would last for a minute; its message comes again in seconds.

    Where several are killed, it is their worker: a pool of which several children were may stand still for a while.
    """

    @pytest.fixture(autouse=True)
    def _leases(self, celery_site):
        celery_site.configure(lease=60, tasklock={"MESSAGE_LEASE": 4})

    @pytest.mark.broker
    def test_every_word_takes_over_at_once(self, celery_site):
        """Gold standard 8: skip and a late acknowledgement were a SUCCESS of work that nobody did. So are locked
        functions inside of a task. RabbitMQ brings a dead worker's message back by itself, and has no leases.
        """
        gate = celery_site.gate()
        results = {
            **{word: ("late_once", {"once": {"on_conflict": word}}) for word in ONCE},
            **{f"decorated {word}": (f"late_{word}", {}) for word in DECORATED_ONES},
            **{name: (name, {}) for name in ("outer", "async_outer")},
        }
        worker = celery_site.worker(concurrency=len(results))
        for key, (task, more) in results.items():
            results[key] = celery_site.publish(task, key, until=gate, **more)
        for key in results:
            celery_site.started(key)
            celery_site.wait_until(lambda key=key: celery_site.lock(f"hold:{key}"))
        worker.kill()
        celery_site.worker(concurrency=len(results))
        for key in results:
            celery_site.started(key, 2, 45)
        gate.open()
        for key, result in results.items():
            state, value = celery_site.outcome(result)
            assert (key, state, value["status"]) == (key, "SUCCESS", "success")
            mine = [one for one in celery_site.events() if one.event == "killed" or one.key == key]
            assert most_at_once(mine) == 1
        assert bool(read_marks(celery_site.app)) is not celery_site.is_amqp
        nothing_is_left(celery_site)

    @pytest.mark.slow
    def test_a_message_that_kills_whoever_runs_it(self, celery_site):
        """It is started a few times, 1 + takeovers, and fails: of ours or decorated, in line or not, with a row.

        What was fetched ahead of its end runs.
        """
        video = Video.objects.create(status="uploading")
        starts = {"late_once": 4, "late_skip": 4, "late_hold": 4, video.pk: 2}
        locks = {key: f"hold:{key}" for key in starts} | {video.pk: f"video:{video.pk}"}
        results = {
            key: celery_site.publish("frail_video" if key == video.pk else key, key, until=celery_site.gate())
            for key in starts
        }
        others = [celery_site.publish("hold", f"ahead {number}") for number in range(3)]
        for number in range(1, 5):
            worker = celery_site.worker(concurrency=4, prefetch=2)
            for key in [key for key, most in starts.items() if number <= most]:
                celery_site.started(key, number, 50)
                # The first start has left a trace: with the store too slow it begins without its lock and takes it
                # later, and of who dies before that nobody knows that he ever began.
                celery_site.wait_until(lambda key=key: celery_site.lock(locks[key]))
            if number > starts[video.pk]:  # it is given up, and who is killed before its result is stored tells nobody
                celery_site.outcome(results[video.pk])
            worker.kill()
        celery_site.worker(concurrency=4)
        assert [celery_site.outcome(one)[0] for one in others] == ["SUCCESS"] * 3
        for key, result in results.items():
            state, error = celery_site.outcome(result)
            assert (key, state, type(error).__name__) == (key, "FAILURE", "CrashLoop")
            assert len(celery_site.events("start", key)) == starts[key]
        nothing_is_left(celery_site)
        assert celery_site.waiting() == 0
        video.refresh_from_db()
        assert (video.status, video.lock_token) == ("failed", "")


def test_the_first_died_on_another_machine(celery_site, monkeypatch):
    """Nobody here can see that: its lease must end."""
    celery_site.configure(lease=3, visibility_timeout=1)
    monkeypatch.setenv(MACHINE, "elsewhere")
    first, gate = celery_site.worker(concurrency=1), celery_site.gate()
    result = celery_site.publish("late_skip", "a", until=gate)
    celery_site.started("a")
    celery_site.wait_until(lambda: celery_site.lock("hold:a"))
    first.kill()
    now = time.monotonic()
    ends = now + celery_site.locks.pttl("task_lock:hold:a") / 1000
    monkeypatch.delenv(MACHINE)
    celery_site.worker(concurrency=1)
    assert celery_site.started("a", 2).time >= ends
    gate.open()
    assert celery_site.outcome(result)[1]["status"] == "success"


class TestItComesBackByItself:
    """The broker brings the same message again, although its worker did not die of it."""

    def test_out_of_the_line_and_its_worker_is_stopped(self, celery_site):
        celery_site.configure(lease=60, visibility_timeout=2)
        worker, hold, gate = celery_site.worker(concurrency=1), celery_site.gate(), celery_site.gate()
        celery_site.publish("queued_hold", "a", until=hold)
        celery_site.started("a")
        late = celery_site.worker(concurrency=1)
        result = celery_site.publish("late_hold", "a", until=gate)
        celery_site.wait_until(lambda: celery_site.is_parked(result))
        hold.open()
        start = celery_site.started("a", 2)
        assert start.task_id == result.id
        stopped = worker if start.pid in worker.children() else late
        celery_site.accepted(stopped)
        stopped.quit()
        stopped.ended()
        gate.open()
        celery_site.started("a", 3)
        assert celery_site.outcome(result)[1]["status"] == "success"
        nothing_is_left(celery_site)

    def test_its_next_page_takes_its_place(self, celery_site):
        """``replace()`` publishes another message with the same id, before the first has left its lock."""
        worker, leave = celery_site.worker(concurrency=3), celery_site.gate()
        result = celery_site.publish("replaced", "a", 0, leave)
        celery_site.wait_until(lambda: said(worker, f"replaced[{result.id}] received", 2))
        celery_site.wait_until(lambda: celery_site.lock("hold:a").waiting == 1)
        leave.open()
        assert celery_site.outcome(result)[1]["status"] == "success"
        assert [event.more["page"] for event in celery_site.events("page")] == [0, 1, 2]

    def test_its_retry_comes_before_the_lock_is_free(self, celery_site):
        worker, leave = celery_site.worker(concurrency=2), celery_site.gate()
        result = celery_site.publish("retrying", "a", leave=leave)
        celery_site.wait_until(lambda: said(worker, f"retrying[{result.id}] received", 2))
        celery_site.wait_until(lambda: celery_site.lock("hold:a").waiting == 1)
        assert len(celery_site.events("try")) == 1
        leave.open()
        # Not by its result: Celery may store RETRY of this try after SUCCESS of the next.
        celery_site.wait_until(lambda: celery_site.events("end", "a"))
        assert [event.more["retries"] for event in celery_site.events("try")] == [0, 1]
        assert not said(worker, AGAIN)
        nothing_is_left(celery_site)


def test_the_token_is_neither_logged_nor_sent_nor_stored_with_the_result(celery_site):
    """It is the proof of ownership, and stays so over a retry."""
    celery_site.configure(result_extended=True, worker_send_task_events=True)
    worker, gate = celery_site.worker(concurrency=2, arguments=("--loglevel=DEBUG",)), celery_site.gate()
    once, name = {"unique": "until_finish"}, f"unique:{celery_site.task('retrying').name}:hold:a"
    result = celery_site.publish("retrying", "a", countdown=1, until=gate, once=once)
    celery_site.wait_until(lambda: result.state == "RETRY")
    celery_site.wait_until(lambda: "message " in str(celery_site.lock(name)))

    def token() -> str:
        [text] = celery_site.locks.mget(f"task_lock:{name}")
        return json.loads(text)["token"]

    kept = token()
    assert kept not in repr(celery_site.lock(name))
    start = celery_site.started("a")
    celery_site.wait_until(lambda: token() != kept)
    now = token()
    assert kept not in str(celery_site.events("header"))
    assert celery_site.events("header")[1].more["unique"]["until"] in worker.log()  # Celery logs whole messages
    shown = celery_site.app.control.inspect(timeout=1).active()
    assert start.task_id in str(shown)
    assert now not in repr(celery_site.lock(name))
    gate.open()
    celery_site.outcome(result)
    meta = celery_site.app.backend.get_task_meta(result.id)
    for each in (kept, now):
        assert each not in worker.log()
        assert each not in f"{shown} {meta}"
