"""One message, several deliveries: of a slow run, of a dead one, of a last try. Never skipped, and run once."""

from __future__ import annotations

import json
import time

import pytest
from celery import Task, chord
from celery.exceptions import Reject, Retry
from celery.worker.request import Request

from django_tasklock import TaskLock, task_lock
from django_tasklock.backends import get_backend
from django_tasklock.backends.memory import reset
from django_tasklock.celery import parked_messages
from django_tasklock.celery.message import RECEIVED
from django_tasklock.types import AcquireRequest, Grant, monotonic
from tests.support.celery_site.courier import Courier
from tests.support.celery_site.journal import most_at_once
from tests.support.celery_site.redelivery_tasks import MACHINE, collect, late_once
from tests.support.guards import MEMORY, elsewhere
from tests.support.once_app import once_app
from tests.testapp.models import Video

pytest_plugins = ["tests.support.celery_site.fixtures"]
pytestmark = [pytest.mark.redis]
SITE_TASKS = ["tests.support.celery_site.redelivery_tasks", "tests.support.celery_site.once_tasks"]

WORDS = ("skip", "raise", "wait", "retry", "reject", "queue", "coalesce")
AGAIN = "duplicate: "
AGAIN_BY_BROKER = {"delivery_info": {"redelivered": True}}


def said(worker, text, times=1):
    return worker.log().count(text) >= times


@pytest.fixture
def app(settings):
    settings.TASKLOCK = MEMORY
    reset()
    with once_app() as made:
        yield made


def nothing_is_left(site):
    site.wait_until(lambda: not parked_messages() and not site.locks.keys("task_lock:*"), 15)


class TestTheFirstLives:
    """The visibility timeout brings a message again whose task still runs."""

    def test_a_worker_with_free_slots(self, celery_site):
        """The same for a decorated task; its row is dropped although the word is skip."""
        celery_site.configure(visibility_timeout=1)
        worker, gate = celery_site.worker(concurrency=2), celery_site.gate()
        result = celery_site.publish("late_skip", "a", until=gate)
        celery_site.wait_until(lambda: said(worker, AGAIN), 10)  # not by waiting for a renewal of the lease
        assert result.state == "PENDING"
        gate.open()
        assert celery_site.outcome(result)[1]["status"] == "success"
        assert len(celery_site.events("start", "a")) == 1
        nothing_is_left(celery_site)

    @pytest.mark.quick
    def test_a_worker_with_one_slot(self, celery_site):
        """The other delivery lies in the worker's buffer until the first has finished."""
        celery_site.configure(visibility_timeout=1)
        worker, gate = celery_site.worker(concurrency=1, prefetch=4), celery_site.gate()
        result = celery_site.publish("late_once", "a", until=gate)
        celery_site.wait_until(lambda: said(worker, f"late_once[{result.id}] received", 2))
        gate.open()
        celery_site.wait_until(lambda: said(worker, "it has succeeded"))
        assert celery_site.result(result).result["status"] == "success"
        assert len(celery_site.events("start", "a")) == 1
        nothing_is_left(celery_site)

    def test_the_first_lies_in_a_buffer_while_the_second_runs(self, celery_site):
        """It says nothing of a redelivery, and comes after the work is done: it has lain there for too long."""
        celery_site.configure(visibility_timeout=1)
        busy, gate = celery_site.worker(concurrency=1, prefetch=2), celery_site.gate()
        celery_site.publish("hold", "blocker", until=gate)
        celery_site.started("blocker")
        result = celery_site.publish("late_once", "a")
        celery_site.wait_until(lambda: said(busy, f"late_once[{result.id}] received"))
        celery_site.worker(concurrency=1)
        assert celery_site.outcome(result)[0] == "SUCCESS"
        gate.open()
        celery_site.wait_until(lambda: said(busy, AGAIN))
        assert len(celery_site.events("start", "a")) == 1

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

    def test_a_member_of_a_chord(self, celery_site):
        celery_site.configure(visibility_timeout=1)
        worker, gate = celery_site.worker(concurrency=4), celery_site.gate()
        result = chord([late_once.s("a", until=gate), late_once.s("b", until=gate)])(collect.s("c"))
        celery_site.wait_until(lambda: said(worker, AGAIN, 2))
        assert celery_site.events("collected") == []
        gate.open()
        state, members = celery_site.outcome(result)
        assert state == "SUCCESS"
        assert sorted(member["key"] for member in members) == ["a", "b"]
        celery_site.publish("late_once", "last")  # whatever came before it has been dealt with
        celery_site.started("last")
        assert len(celery_site.events("collected")) == 1
        assert len(celery_site.events("start")) == 3


class TestTheFirstDied:
    @pytest.fixture(autouse=True)
    def _messages_have_leases(self, celery_site):
        """The worker has asked others who renews by then: a child that is forked afterwards hung for ever, once."""
        celery_site.configure(tasklock={"MESSAGE_LEASE": 60})

    @pytest.mark.parametrize("kind", ["late_once", "late_"])
    def test_every_word_takes_over_at_once(self, celery_site, kind):
        """Gold standard 8: skip and a late acknowledgement were a SUCCESS of work that nobody did."""
        celery_site.configure(lease=60)
        worker, gate = celery_site.worker(concurrency=len(WORDS)), celery_site.gate()
        results = {}
        for word in WORDS:
            more = {"once": {"on_conflict": word}} if kind == "late_once" else {}
            task = kind if kind == "late_once" else f"late_{word}"
            results[word] = celery_site.publish(task, word, until=gate, **more)
        for start in [celery_site.started(word) for word in WORDS]:
            worker.kill_one(start.pid)
        for word in WORDS:
            celery_site.started(word, 2, 45)
        gate.open()
        for word in WORDS:
            state, value = celery_site.outcome(results[word])
            assert (word, state, value["status"]) == (word, "SUCCESS", "success")
            mine = [one for one in celery_site.events() if one.event == "killed" or one.key == word]
            assert most_at_once(mine) == 1
        nothing_is_left(celery_site)

    @pytest.mark.parametrize("task", ["outer", "async_outer"])
    def test_a_locked_function_inside_of_the_task(self, celery_site, task):
        celery_site.configure(lease=60)
        worker, gate = celery_site.worker(concurrency=2), celery_site.gate()
        result = celery_site.publish(task, "a", until=gate)
        worker.kill_one(celery_site.started("a").pid)
        celery_site.started("a", 2, 45)
        gate.open()
        assert celery_site.outcome(result)[1]["status"] == "success"

    @pytest.mark.quick
    def test_a_guarded_row(self, celery_site):
        celery_site.configure(lease=60)
        worker, gate = celery_site.worker(concurrency=2), celery_site.gate()
        video = Video.objects.create(status="uploading")
        result = celery_site.publish("video_skip", video.pk, until=gate)
        worker.kill_one(celery_site.started(video.pk).pid)
        celery_site.started(video.pk, 2, 45)
        gate.open()
        assert celery_site.outcome(result)[1]["status"] == "success"
        video.refresh_from_db()
        assert video.status == "ready"


class TestAnotherMachine:
    """Nobody here can see whether the first delivery's process lives."""

    def test_it_does_not(self, celery_site, monkeypatch):
        celery_site.configure(lease=3, visibility_timeout=1)
        monkeypatch.setenv(MACHINE, "elsewhere")
        first, gate = celery_site.worker(concurrency=1), celery_site.gate()
        result = celery_site.publish("late_skip", "a", until=gate)
        celery_site.started("a")
        first.kill()
        died = time.monotonic()
        monkeypatch.delenv(MACHINE)
        celery_site.worker(concurrency=1)
        again = celery_site.started("a", 2)
        assert again.time - died > 0.9  # renewed for the last time at most a third of the lease before
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


class TestADuplicateComesAgain:
    """With the duplicate the broker's copy may have gone: so it is sent again, until the first has ended."""

    @pytest.fixture
    def met(self, app):
        """``met(act)``: a message that is delivered again while it runs; how that ended, and the copy that was sent.

        ``act``: what its body does then.
        """

        def make(act, **options):
            def body(task):
                app.body()
                if len(app.calls) > 1:
                    return "ran again"
                seen.append(elsewhere(lambda: app.run(message, **AGAIN_BY_BROKER)))
                seen.append(app.take())
                return act(task)

            seen = []
            app.task(body, bind=True, **{"key": "a", "acks_late": True, **options}).delay()
            message = app.take()
            try:
                first = app.run(message)
            except SystemExit:
                first = "stopped", None
            return first, *seen

        return make

    def test_it_ends_when_the_first_has_ended(self, app, met):
        first, second, copy = met(lambda task: "ran")
        assert (first, second[0]) == (("SUCCESS", "ran"), "IGNORED")
        assert "again in" in str(second[1])
        assert app.run(copy)[0] == "IGNORED"
        assert len(app.calls) == 1
        assert app.take() is None

    @pytest.mark.parametrize(
        "act", [lambda task: 1 / 0, lambda task: task.retry(countdown=0)], ids=["fails", "retries"]
    )
    def test_however_it_has_ended(self, app, met, act):
        """The result backend does not say that there is nothing to do: the first has left a mark."""
        first, _, copy = met(act)
        assert first[0] in ("FAILURE", "RETRY")
        assert app.run(copy)[0] == "IGNORED"
        assert len(app.calls) == 1
        if first[0] == "RETRY":
            assert app.run() == ("SUCCESS", "ran again")

    @pytest.mark.parametrize("interruption", [Reject("later", requeue=True), SystemExit()], ids=["rejected", "stopped"])
    def test_it_runs_if_the_first_is_interrupted(self, app, met, interruption):
        first, second, copy = met(raising(interruption))
        assert (first[0], second[0]) == ("stopped" if isinstance(interruption, SystemExit) else "REJECTED", "IGNORED")
        assert app.run(copy) == ("SUCCESS", "ran again")
        assert len(app.calls) == 2

    def test_it_runs_if_the_first_was_sent_again_itself(self, app, met):
        """As a call of the body that waits for a rate limit is, or for its row: that is the same try."""
        first, _, copy = met(raising(Retry("its turn is later")))
        assert first[0] == "RETRY"
        assert app.run(copy) == ("SUCCESS", "ran again")

    def test_while_the_first_runs_it_comes_again_and_again(self, app):
        def body():
            app.body()
            copy = message
            for waits in (1, 2, 3):
                assert elsewhere(lambda copy=copy: app.run(copy, **AGAIN_BY_BROKER))[0] == "IGNORED"
                copy = app.take()
                assert copy.ours["waits"] == waits
            return copy

        app.task(body, key="a", acks_late=True).delay()
        message = app.take()
        state, copy = app.run(message)
        assert state == "SUCCESS"
        assert app.run(copy)[0] == "IGNORED"
        assert len(app.calls) == 1

    def test_acknowledged_early_there_is_no_copy(self, app, met):
        """The broker brings back nothing, whatever becomes of the first."""
        first, second, copy = met(lambda task: "ran", acks_late=False)
        assert (first, second[0], copy) == (("SUCCESS", "ran"), "IGNORED", None)

    def test_its_result_is_not_touched(self, app, met):
        """Nor is what makes it unique."""
        states = []
        first, _, copy = met(
            lambda task: states.append(app.app.AsyncResult(task.request.id).state), unique="until_finish"
        )
        assert first[0] == "SUCCESS"
        assert states == ["PENDING"]
        assert app.run(copy)[0] == "IGNORED"
        assert app.app.AsyncResult(copy.id).state == "SUCCESS"

    @pytest.mark.django_db(transaction=True)
    @pytest.mark.parametrize("word", ["queue", "coalesce"])
    def test_it_is_neither_parked_nor_replaced_beside_its_own_run(self, app, word):
        """Although another one, published earlier or later, waits for the lock that it has."""

        def body(task):
            app.body()
            if len(app.calls) > 1:
                return "the other"
            assert elsewhere(lambda: app.run(other))[0] == "IGNORED"
            assert elsewhere(lambda: app.run(message, **AGAIN_BY_BROKER))[0] == "IGNORED"
            assert [one.task_id for one in parked_messages()] == [other.id]
            return "ran"

        task = app.task(body, bind=True, key="a", acks_late=True, on_conflict=word)
        for _ in range(2):
            task.delay()
        message, other = app.all() if word == "coalesce" else reversed(app.all())
        get_backend().leave_order("a", other.id)
        assert app.run(message) == ("SUCCESS", "ran")
        assert max(str(app.run(one)[1]) for one in app.all()) == "the other"
        assert app.app.AsyncResult(message.id).result == "ran"
        assert len(app.calls) == 2
        assert parked_messages() == []

    def test_before_its_result_is_stored_it_is_not_done(self, app, met, monkeypatch):
        """A worker that is killed in between has not ended it: a chord would wait for it for ever."""
        with monkeypatch.context() as patch:
            patch.setattr(type(app.app.backend), "mark_as_done", raising(SystemExit()))
            first, _, copy = met(lambda task: "ran")
        assert first[0] == "stopped"
        assert app.run(copy) == ("SUCCESS", "ran again")


def raising(error):
    """A function that raises it, whatever it is given."""

    def function(*what, **how):
        raise error

    return function


@pytest.mark.django_db(transaction=True)
def test_of_a_publisher_that_does_not_know_the_task_none_overtakes_a_parked_one(app):
    task = app.task(key="unknown to its publisher", on_conflict="queue")
    for argument in ("first", "second"):
        app.app.send_task(task.name, (argument,))
    with TaskLock("unknown to its publisher"):
        assert elsewhere(app.run)[0] == "IGNORED"
    assert app.run()[0] == "IGNORED"  # it parks and promotes the first
    assert [app.run(), app.run()] == [("SUCCESS", "ran")] * 2
    assert app.calls == [(("first",), {}), (("second",), {})]
    assert not parked_messages()


@pytest.mark.django_db(transaction=True)
def test_what_succeeded_does_not_wait_behind_others():
    """Its publisher did not know the task: its place is that of its arrival, behind what waits by now."""
    with once_app() as app:  # on Redis, which has the line
        body = task_lock("succeeded", on_conflict="queue")(lambda *args: app.body(*args))
        task = app.task(body, base=Task, acks_late=True)
        first = app.app.send_task(task.name, ("first",))
        message = app.take()
        assert app.run(message) == ("SUCCESS", "ran")
        second = app.app.send_task(task.name, ("second",))
        with TaskLock("succeeded"):
            assert elsewhere(app.run)[0] == "IGNORED"
        assert app.run(message, **AGAIN_BY_BROKER)[0] == "IGNORED"
        [waiting] = parked_messages()
        assert waiting.task_id == second.id
        assert get_backend().count_before("succeeded", waiting.number + 60_000_000) == 1  # however late another comes
        assert app.app.AsyncResult(first.id).state == "SUCCESS"


def test_a_task_id_that_is_used_again(app):
    """What succeeded yesterday says nothing of today's message."""
    task = app.task(key="a", acks_late=True)
    task.apply_async(task_id="nightly")
    assert app.run() == ("SUCCESS", "ran")
    backend = app.app.backend
    yesterday = {**backend.get_task_meta("nightly"), "date_done": "2020-01-01T00:00:00+00:00"}
    backend.set(backend.get_key_for_task("nightly"), backend.encode(yesterday))
    task.apply_async(task_id="nightly")
    assert app.run(**AGAIN_BY_BROKER) == ("SUCCESS", "ran")


def hold_as(task, task_id, **known):
    """The lock is held by a delivery of this message."""
    holder = json.dumps({"host": "h", "pid": 7, "task": task.name, "task_id": task_id, **known})
    assert isinstance(get_backend().acquire(AcquireRequest("a", "0" * 32, 60_000, 60_000, holder)), Grant)


def test_an_earlier_try_that_comes_late(app):
    """The broker brings the first try once more while the third runs, which was published by the second."""
    task = app.task(key="a", acks_late=True)
    hold_as(task, task.delay().id, retries=2)
    assert app.run(**AGAIN_BY_BROKER)[0] == "IGNORED"
    assert app.calls == []
    assert app.take() is None
    assert get_backend().get("a") is not None


def test_nobody_sees_in_time_whether_the_first_lives(app):
    """On another machine, with a lock that is not renewed and does not end: it is not lost, it comes again later."""
    task = app.task(key="a", acks_late=True, on_conflict="skip", lease=0.1)
    message = task.delay()
    hold_as(task, message.id, proc="elsewhere:1")
    assert app.run(**AGAIN_BY_BROKER)[0] == "IGNORED"
    assert app.calls == []
    assert app.take().id == message.id


class TestRetry:
    """Celery's own retry of mine."""

    def test_it_comes_before_the_lock_is_free(self, celery_site):
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

    def test_the_token_is_neither_logged_nor_sent_nor_stored_with_the_result(self, celery_site):
        """It is the proof of ownership."""
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
