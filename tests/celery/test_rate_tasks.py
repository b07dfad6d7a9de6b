"""A limited task never begins before its turn, holds nothing while it waits, and comes back with its one reservation.

``spread`` publishes messages with their reservations; what does not run gives its own back if it was not used.
"""

from __future__ import annotations

import re
import time
from datetime import timedelta
from itertools import pairwise

import pytest
from celery import signals
from celery.utils.time import maybe_iso8601
from kombu import Exchange, Producer, Queue
from kombu.exceptions import OperationalError
from kombu.transport import memory

from django_tasklock import (
    ConcurrencyLimiter,
    RateLimiter,
    RateLimitExceeded,
    TaskLock,
    TaskLockError,
    concurrency_limited,
    current_reservation,
    get_lock_info,
    model_lock,
    rate_limited,
    task_lock,
)
from django_tasklock.celery import parked_messages, spread
from django_tasklock.celery.message import RECEIVED
from django_tasklock.celery.queue.promoter import Promoter, promote
from django_tasklock.celery.rates import countdown
from django_tasklock.db.clock import Now
from django_tasklock.models import ParkedMessage
from django_tasklock.types import monotonic
from tests.support.celery_site.courier import Courier
from tests.support.guards import GUARD, elsewhere, held_by_another
from tests.support.once_app import once_app
from tests.support.rate_callers import most_within
from tests.support.stores import eventually
from tests.testapp.models import Video

pytest_plugins = ["tests.support.celery_site.fixtures", "tests.support.redis_fixtures"]
pytestmark = [pytest.mark.redis, pytest.mark.workers]
SITE_TASKS = ["tests.support.celery_site.rated_tasks"]
QUIET = pytest.mark.filterwarnings("ignore:Call to deprecated setex:DeprecationWarning")  # by Celery's results


def slow():
    return RateLimiter("slow", "1/5m")


def full(limiter, number):
    """The limiter, with so many reservations of this moment taken."""
    assert len(limiter.reserve_many(number)) == number
    return limiter


def booked(limiter):
    """Units used in this window, and booked for later."""
    window = limiter.usage().windows[0]
    return window.used, window.ahead


def times(site, **which):
    return [(event.time, 1) for event in site.events("start", **which)]


def waits(site, number=1):
    """Wait until so many messages were sent away with a reservation."""
    site.wait_until(lambda: "".join(worker.log() for worker in site.workers).count("its turn is in") >= number)


class TestWaiting:
    def test_in_any_window_no_more_bodies_begin_than_the_limit_over_two_workers(self, celery_site):
        """Gold standard 8.40. With ``max_retries=0``: no retry of the task is spent; each runs once."""
        for _ in range(2):
            celery_site.start(concurrency=2)
        for worker in celery_site.workers:
            worker.wait_until_ready()
        results = [celery_site.publish("rated_fast", f"k{number}") for number in range(25)]
        results += spread(celery_site.task("rated_fast"), [f"s{number}" for number in range(15)])
        assert [celery_site.outcome(result)[0] for result in results] == ["SUCCESS"] * 40
        began = times(celery_site)
        assert len(began) == 40
        assert most_within(began, 1.0) <= 20
        assert len({event.pid for event in celery_site.events("start")}) > 1

    def test_in_no_window_two_limits_have_more_over_two_workers(self, celery_site):
        """Each body has a cost of its own in one of them."""
        for _ in range(2):
            celery_site.start(concurrency=2)
        for worker in celery_site.workers:
            worker.wait_until_ready()
        results = [celery_site.publish("rated_both", str(number)) for number in range(40)]
        results += spread(celery_site.task("rated_both"), [str(number) for number in range(10)])
        assert [celery_site.outcome(result)[0] for result in results] == ["SUCCESS"] * 50
        began = [(event.time, 2 + int(event.key) % 3) for event in celery_site.events("start")]
        assert len(began) == 50
        assert most_within(began, 1.0) <= 60
        assert most_within([(moment, 1) for moment, _ in began], 1.0) <= 20

    def test_the_worker_is_left_to_others_and_a_great_wait_is_made_in_steps_and_booked_once(self, celery_site):
        """One slot, and four messages that wait for it. Gold standard 8.26, and Galaxy's bug: a reservation that is
        booked again at each step goes ever further away."""
        celery_site.configure(visibility_timeout=2)  # a step is a second
        celery_site.worker(concurrency=1)
        results = [celery_site.publish("rated_slow", f"k{number}") for number in range(5)]
        waits(celery_site, 4)
        assert celery_site.outcome(celery_site.publish("hold", "free"))[0] == "SUCCESS"
        assert len(celery_site.events("start")) == 2
        waits(celery_site, 8)
        assert booked(slow()) == (1, 4)
        assert [celery_site.result(result).state for result in results] == ["SUCCESS", *["RETRY"] * 4]

    @pytest.mark.quick
    def test_one_step_is_never_longer_than_half_of_the_visibility_timeout(self, celery_site):
        limiter = RateLimiter("x", "1/m", max_wait=7200)
        celery_site.configure(visibility_timeout=100)
        assert countdown(celery_site.app, limiter, 7000) == 50
        celery_site.configure(visibility_timeout=7200)
        assert countdown(celery_site.app, limiter, 7000) == 600
        assert countdown(celery_site.app, limiter, 10) == 9.5
        assert countdown(celery_site.app, limiter, 10, missed=2) == 8
        assert countdown(celery_site.app, limiter, 50, missed=20) == 20
        assert countdown(celery_site.app, RateLimiter("x", "100/s"), 1) == pytest.approx(0.9895)

    @QUIET
    @pytest.mark.quick
    def test_it_is_sent_again_as_the_same_message_with_a_countdown_and_its_reservation(self, celery_site):
        courier = Courier(celery_site)
        full(slow(), 1)
        result = celery_site.publish("rated_slow", "a", options={"priority": 3, "headers": {"trace": "x"}})
        reservations = []
        for _ in range(2):
            courier.run()
            message = courier.take()
            headers = message.message.headers
            assert (headers["id"], headers["retries"], headers["trace"]) == (result.id, 0, "x")
            assert message.message.properties["priority"] == 3
            assert 200 < maybe_iso8601(headers["eta"]).timestamp() - time.time() < 300.2
            reservations.append(headers["tasklock"]["rate"]["token"])
            message.execute()
        assert reservations[0] == reservations[1]
        assert booked(slow()) == (1, 1)


class TestCoalesce:
    """The newest of those that wait has the turn of the first: however many are triggered, no turn is wasted."""

    def test_it_runs_at_each_turn_and_the_newest_at_the_first_after_it(self, celery_site):
        celery_site.worker(concurrency=2, prefetch=4)
        results = []
        for number in range(20):
            results.append(celery_site.publish("rated_coalesced", number))
            time.sleep(0.5)  # it is the rate of the triggers
        last = time.monotonic()
        began = celery_site.started(19)
        assert began.time - last < 4
        runs = celery_site.events("start")
        assert len(runs) >= 4  # of six turns
        assert most_within([(run.time, 1) for run in runs], 1.9) == 1
        for number, result in enumerate(results):
            ended = celery_site.outcome(result)[1]
            assert ended["status"] == "success" if any(run.key == str(number) for run in runs) else "skipped"
        assert RateLimiter("coalesced", "1/2s").usage().windows[0].ahead == 0
        celery_site.wait_until(lambda: not parked_messages())


class TestEndings:
    def test_one_that_ends_before_its_turn_gives_its_reservation_back(self, celery_site):
        celery_site.configure(visibility_timeout=2)
        celery_site.worker(concurrency=1)
        celery_site.outcome(celery_site.publish("rated_slow", "a"))
        expires = celery_site.publish("rated_slow", "b", options={"expires": 4})
        revoked = celery_site.publish("rated_slow", "c")
        waits(celery_site, 2)
        celery_site.app.control.revoke(revoked.id)
        assert celery_site.outcome(expires)[0] == celery_site.outcome(revoked)[0] == "REVOKED"
        celery_site.wait_until(lambda: booked(slow()) == (1, 0))

    @QUIET
    @pytest.mark.quick
    def test_what_lay_in_a_worker_that_was_stopped_for_a_lease_books_another_reservation(self, celery_site):
        """That of the message may have been used by a worker that was given it meanwhile."""
        celery_site.configure(tasklock={"MESSAGE_LEASE": 60})
        limiter = RateLimiter("late", "5/m")
        spread(celery_site.task("rated_late"), ["a"])
        request = Courier(celery_site).take()
        request.request_dict[RECEIVED] = monotonic() - 61
        request.execute()
        assert celery_site.events("start", "a")
        assert booked(limiter) == (2, 0)


@pytest.fixture
def app():
    with once_app() as made:
        yield made


def limited(app, name, rate="1/5m", body=lambda: "ran", **options):
    """A task with a limit of its own."""
    return app.task(rate_limited(name, rate, **options)(body), base=app.app.Task)


@pytest.mark.quick
@pytest.mark.django_db(transaction=True)
@QUIET
class TestReplaced:
    """By a newer message, with ``coalesce``."""

    @pytest.fixture
    def limiter(self, name):
        return full(RateLimiter(name, "5/5m"), 5)

    def replaceable(self, app, name, **options):
        body = lambda number, units=1: number  # noqa: E731
        limited_body = rate_limited(name, "5/5m", cost=lambda number, units=1: units, **options)(body)
        return app.task(limited_body, key=name, on_conflict="coalesce")

    def turn(self, message):
        return message.ours["rate"]["time"]

    def test_its_turn_passes_to_the_newer_one(self, app, name, limiter):
        """At once, and with its result. Its own message is dropped when it comes."""
        task = self.replaceable(app, name)
        waiting = []
        for number in range(4):
            result = task.delay(number)
            assert app.run()[0] == "RETRY"
            waiting.append(app.take())
            assert [(row.task_id, row.state) for row in parked_messages(name)] == [(result.id, "promoted")]
            assert booked(limiter) == (5, 1)
        assert len({self.turn(message) for message in waiting}) == 1
        for message in waiting[:3]:
            assert app.app.AsyncResult(message.id).result["reason"] == "coalesced"
            assert app.run(message)[0] == "IGNORED"
        assert booked(limiter) == (5, 1)
        limiter.reset()
        assert app.run(waiting[3]) == ("SUCCESS", 3)
        assert parked_messages(name) == []

    def test_its_turn_passes_to_one_that_was_parked(self, app, name, limiter):
        task = self.replaceable(app, name)
        task.delay(0)
        assert app.run()[0] == "RETRY"
        first = app.take()
        with TaskLock(name):
            task.delay(1)
            assert elsewhere(app.run)[0] == "IGNORED"
        assert [row.state for row in parked_messages(name)] == ["promoted", "parked"]
        assert promote(name, app.app)
        assert app.app.AsyncResult(first.id).result["reason"] == "coalesced"
        assert limiter.reserve()  # by somebody who comes before the parked one does
        assert app.run()[0] == "RETRY"
        assert self.turn(app.take()) == self.turn(first)
        assert booked(limiter) == (5, 2)

    @pytest.mark.parametrize("units", [1, 3])
    def test_a_turn_of_another_cost_is_given_back(self, app, name, limiter, units):
        task = self.replaceable(app, name)
        for number in range(2):
            task.delay(number, 2 if number else units)
            assert app.run()[0] == "RETRY"
            app.take()
        assert booked(limiter) == (5, 2)

    def test_one_that_cannot_be_sent_again_is_sent_by_a_promoter(self, app, name, limiter, monkeypatch):
        task = self.replaceable(app, name)
        task.delay(0)
        message = app.take()
        with monkeypatch.context() as broken:
            broken.setattr(app.app.amqp, "send_task_message", lambda *args, **kwargs: 1 / 0)
            assert app.run(message)[0] == "RETRY"
        assert app.take() is None
        ParkedMessage.objects.update(changed_at=Now() - 11_000)
        limiter.reset()
        assert Promoter(app.app).poll() == 1
        assert app.run() == ("SUCCESS", 0)

    def test_one_that_has_expired_gives_its_turn_back(self, app, name, limiter):
        """Its worker never came: a promoter ends it."""
        self.replaceable(app, name).apply_async((0,), expires=0.1)
        assert app.run()[0] == "RETRY"
        app.take()
        ParkedMessage.objects.update(changed_at=Now() - 11_000)
        eventually(lambda: Promoter(app.app).poll() == 0 and not parked_messages(name))
        assert booked(limiter) == (5, 0)


@pytest.mark.quick
class TestOneMessage:
    """Step by step, in this process."""

    @pytest.mark.database
    @pytest.mark.django_db(transaction=True)
    def test_neither_a_lock_nor_a_row_nor_a_permit_is_held_while_it_waits(self, app, name):
        full(RateLimiter(name, "1/5m"), 1)
        body = concurrency_limited(name, 1)(rate_limited(name, "1/5m")(lambda pk: "ran"))
        task = app.task(model_lock(Video, name + ":{pk}", guard=GUARD)(body), base=app.app.Task)
        video = Video.objects.create()
        task.delay(video.pk)
        assert app.run()[0] == "RETRY"
        assert get_lock_info(f"{name}:{video.pk}") is None
        assert ConcurrencyLimiter(name, 1).info().used == 0
        video.refresh_from_db()
        assert video.status == GUARD.retry

    def test_one_whose_worker_is_killed_in_its_run_costs_one_reservation(self, app, name):
        """And not none: the call may have been made. The message comes back and books another one."""
        spread(limited(app, name, "5/m"), 1)
        message = app.take()
        assert app.run(message) == ("SUCCESS", "ran")
        assert booked(RateLimiter(name, "5/m")) == (1, 0)
        assert app.run(message, delivery_info={"redelivered": True}) == ("SUCCESS", "ran")
        assert booked(RateLimiter(name, "5/m")) == (2, 0)

    def test_its_reservation_outlives_a_stop_and_a_worker_that_dies(self, app, name):
        """Whoever comes before its turn, or is delivered again then, cannot have used it."""
        limiter = full(RateLimiter(name, "1/5m"), 1)
        limited(app, name).delay()
        assert app.run()[0] == "RETRY"
        message = app.take()
        limiter.penalize(600)
        assert app.run(message, delivery_info={"redelivered": True})[0] == "RETRY"
        assert booked(limiter) == (1, 1)
        assert app.run()[0] == "RETRY"
        assert booked(limiter) == (1, 1)

    def test_one_that_missed_its_reservation_takes_another(self, app, name, caplog):
        caplog.set_level("INFO", "django_tasklock")
        limiter = full(RateLimiter(name, "1/5s"), 1)
        limited(app, name, "1/5s").delay()
        assert app.run()[0] == "RETRY"
        message = app.take()
        eventually(lambda: limiter.usage().time.timestamp() > message.ours["rate"]["time"] + 0.5, 30)
        assert app.run(message) == ("SUCCESS", "ran")
        assert "a reservation was missed by" in caplog.text
        assert booked(limiter) == (1, 0)

    def test_what_cannot_be_in_time_fails_at_once_and_says_when_it_could_have_been(self, app, name):
        limiter = full(RateLimiter(name, "1/5m"), 1)
        limited(app, name, blocking_timeout=30).delay()
        state, error = app.run()
        assert (state, type(error)) == ("FAILURE", RateLimitExceeded)
        assert re.search(r"the next reservation is in (300|2\d\d)\.", str(error))
        assert booked(limiter) == (1, 0)

    def test_a_longest_wait_as_a_timedelta_counts_what_is_left_of_it(self, app, name):
        full(RateLimiter(name, "1/5m"), 1)
        limited(app, name, blocking_timeout=timedelta(minutes=10)).delay()
        assert app.run()[0] == "RETRY"
        assert app.take().ours["rate"]["left"] == pytest.approx(300, abs=30)

    def test_one_that_is_skipped_gives_its_reservation_back(self, app, name):
        limiter = RateLimiter(name, "1/5m")
        task = app.task(task_lock(name)(rate_limited(name, "1/5m")(lambda: "ran")), base=app.app.Task)
        spread(task, 1)
        assert booked(limiter) == (1, 0)
        with held_by_another(name):
            assert app.run()[1]["status"] == "skipped"
        assert booked(limiter) == (0, 0)

    def test_a_retry_books_a_reservation_of_its_own(self, app, name):
        def body(self):
            raise self.retry(countdown=0)

        task = app.task(rate_limited(name, "1/5m")(body), base=app.app.Task, bind=True, max_retries=1)
        task.delay()
        assert app.run()[0] == "RETRY"
        assert app.run()[0] == "RETRY"
        assert app.take().headers["retries"] == 1  # put off, which is no retry of the task
        assert booked(RateLimiter(name, "1/5m")) == (1, 1)

    def test_the_quota_of_a_tenant(self, app, name):
        task = limited(app, name, "9/5m", lambda who: who, tenants="1/5m", tenant="{who}")
        for who in "aab":
            task.delay(who)
        assert [app.run(message)[0] for message in app.all()] == ["SUCCESS", "RETRY", "SUCCESS"]

    def test_a_message_waits_for_several_limits_with_a_reservation_at_one_of_them(self, app, name):
        """It has what it costs at the others with it, and counts there when it runs."""
        requests, tokens = RateLimiter(name, "9/5m"), full(RateLimiter(f"{name}:tokens", "5/5m"), 5)

        @rate_limited(requests.together_with(tokens), cost=lambda units: {tokens.name: units})
        def ask(units):
            return current_reservation().settle({tokens.name: units - 1})

        app.task(ask, base=app.app.Task).delay(4)
        assert app.run()[0] == "RETRY"
        assert (booked(requests), booked(tokens)) == ((0, 0), (5, 4))
        [message] = app.all()
        tokens.reset()
        assert app.run(message) == ("SUCCESS", True)
        assert (booked(requests), booked(tokens)) == ((1, 0), (3, 0))

    @pytest.mark.parametrize("outside", [task_lock("x"), concurrency_limited("x", 2)])
    def test_a_limit_around_a_lock_is_refused(self, outside):
        """It would spend reservations on calls that are skipped."""
        with pytest.raises(TaskLockError, match="put rate_limited below the lock or the concurrency limiter"):
            rate_limited("x", "1/s")(outside(lambda: None))

    def test_direct_and_eager_calls_wait_here(self, app, name):
        task, before = limited(app, name, "9/s"), monotonic()
        full(RateLimiter(name, "9/s"), 8)
        assert task.apply().get() == "ran"
        assert task() == "ran"
        assert monotonic() > before + 0.9
        assert app.all() == []
        app.app.conf.task_always_eager = True
        assert [result.get() for result in spread(task, 2)] == ["ran"] * 2


@pytest.mark.quick
class TestSpread:
    def test_each_is_published_for_its_time(self, celery_site):
        """What may go at once for now; the others evenly spread, and not all at the beginning of the next window."""
        reservations = []

        def note(headers, **details):
            reservations.append((headers["tasklock"]["rate"]["time"], headers["eta"]))

        signals.before_task_publish.connect(note)
        try:
            spread(celery_site.task("rated_fast"), [f"k{number}" for number in range(40)])
        finally:
            signals.before_task_publish.disconnect(note)
        times_ = [time for time, _ in reservations]
        gaps = [later - earlier for earlier, later in pairwise(times_)]
        assert max(gaps[:19]) < 0.06
        assert times_[20] - times_[0] > 1.199  # seconds since 1970 have no more digits
        assert gaps[20:] == pytest.approx([0.06] * 19, abs=0.001)
        assert [due for _, due in reservations[:20]] == [None] * 20
        assert all(maybe_iso8601(due).timestamp() < reservation for reservation, due in reservations[20:])
        assert celery_site.waiting() == 40

    def test_all_or_none(self, celery_site):
        with pytest.raises(RateLimitExceeded):
            spread(celery_site.task("rated_slow"), [f"k{number}" for number in range(70)])
        assert booked(slow()) == (0, 0)
        assert celery_site.waiting() == 0

    def test_what_cannot_be_published_gives_its_reservation_back(self, celery_site, monkeypatch):
        task = celery_site.task("rated_slow")
        whole = type(task).apply_async

        def failing(self, args=None, *more, **options):
            if args == ("c",):
                raise OSError("broken")
            return whole(self, args, *more, **options)

        monkeypatch.setattr(type(task), "apply_async", failing)
        with pytest.raises(OSError, match="broken"):
            spread(task, list("abcd"))
        assert booked(slow()) == (1, 1)
        assert celery_site.waiting() == 2

    def test_a_message_that_may_have_been_sent_has_its_reservation(self, celery_site, monkeypatch):
        """The connection was lost: the broker has the message, and the publisher does not know that."""
        publish = Producer.publish

        def lost(self, *arguments, **options):
            publish(self, *arguments, **options)
            raise OperationalError("lost") from ConnectionResetError("lost")

        monkeypatch.setattr(Producer, "publish", lost)
        with pytest.raises(OperationalError, match="lost"):
            spread(celery_site.task("rated_slow"), list("ab"))
        assert booked(slow()) == (1, 0)
        assert celery_site.waiting() == 1

    def test_its_calls(self, app, name):
        task = app.task(rate_limited(name, "9/s")(lambda x, y=0: None), base=app.app.Task)
        spread(task, [(1, 2), {"x": 1}, "a"])
        assert [(one.args, one.kwargs) for one in app.all()] == [([1, 2], {}), ([], {"x": 1}), (["a"], {})]

    def test_nothing_is_booked_for_what_is_under_way(self, app, name):
        """``unique``: the second has the result of the first, and no reservation."""
        first, second = spread(app.task(rate_limited(name, "9/5m")(lambda: None), key=name, unique="until_start"), 2)
        assert first.id == second.id
        assert booked(RateLimiter(name, "9/5m")) == (1, 0)

    def test_what_cannot_work_is_refused(self, celery_site):
        with pytest.raises(TaskLockError, match="hold has no rate limit"):
            spread(celery_site.task("hold"), ["a"])
        with pytest.raises(TaskLockError, match="neither countdown nor eta"):
            spread(celery_site.task("rated_fast"), ["a"], countdown=3)
        with pytest.raises(TaskLockError, match="0 calls or more, not -1"):
            spread(celery_site.task("rated_fast"), -1)


@pytest.mark.quick
def test_a_message_that_cannot_be_sent_again_for_its_turn(app, name, monkeypatch):
    """It fails with the broker's error after its patience, and its reservation is used: the broker may have it."""

    def failing(self, *arguments, **options):
        raise OperationalError("the broker is down") from ConnectionResetError("lost")

    limiter = full(RateLimiter(name, "1/5m"), 1)
    task = limited(app, name)
    task.patience = 0.001
    task.delay()
    monkeypatch.setattr(Producer, "publish", failing)
    state, error = app.run()
    assert (state, str(error)) == ("FAILURE", "the broker is down")
    assert sum(booked(limiter)) == 2


class Delaying(memory.Transport):
    """Messages in this process, for which Celery does what it does on RabbitMQ."""

    driver_type = "amqp"


@pytest.fixture
def quorum():
    """An app whose queue is a quorum queue: Celery has it delayed by whole seconds, or raises ``ValueError``."""
    with once_app() as made:
        topic = Exchange(f"{made.queue}.topic", type="topic")
        made.app.conf.update(
            broker_transport=f"{__name__}:Delaying",
            task_queues=[Queue(made.queue, topic, made.queue, queue_arguments={"x-queue-type": "quorum"})],
            task_default_exchange=topic.name,
            task_default_exchange_type="topic",
            task_default_routing_key=made.queue,
        )
        yield made


@pytest.mark.quick
class TestQuorumQueues:
    def test_what_has_less_than_a_second_to_wait_waits_in_the_worker(self, quorum, name):
        limiter = full(RateLimiter(name, "5/s"), 5)
        task = quorum.task(rate_limited(name, "5/s")(lambda: "ran"), base=quorum.app.Task)
        task.delay()
        assert quorum.run() == ("SUCCESS", "ran")
        assert [countdown(quorum.app, limiter, wait) for wait in (0.1, 0.7, 1.1, 1.3)] == [0, 0, 0, pytest.approx(1.09)]

    def test_a_busy_lock_and_a_delay_of_less_than_a_second(self, quorum, name):
        task = quorum.task(key=name, on_conflict="retry", default_retry_delay=0.5)
        task.delay()
        with held_by_another(name):
            state, retry = quorum.run()
        assert (state, retry.when) == ("RETRY", 1)
