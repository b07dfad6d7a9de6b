"""A message that is delivered again is never lost and runs once, and it ends when too many workers have died of it."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from celery import Task
from celery.app.task import Context
from celery.backends.cache import CacheBackend
from celery.exceptions import Reject, Retry, WorkerShutdown, WorkerTerminate
from django.utils import timezone

from django_tasklock import TaskLock, task_lock
from django_tasklock.backends import get_backend
from django_tasklock.celery import parked_messages
from django_tasklock.celery.delivery import duplicates, run
from django_tasklock.celery.message import Message
from django_tasklock.celery.queue.promoter import promote
from django_tasklock.exceptions import CrashLoop, LockLost, StaleClaim
from django_tasklock.host import Task as Known
from django_tasklock.locks.holder import holder_json
from django_tasklock.testing import lose
from django_tasklock.types import AcquireRequest, Grant
from tests.support.guards import elsewhere, new_token
from tests.support.once_app import OnceApp, once_app

pytest_plugins = ["tests.support.once_fixtures"]

AGAIN: Any = {"delivery_info": {"redelivered": True}}
"""The broker says that a message was delivered before."""


class Killed(WorkerTerminate):
    """Stands for ``kill -9``: nobody catches it."""


def raising(error: BaseException) -> Callable[..., Any]:
    """A function that raises it, whatever it is given."""

    def function(*what: Any, **how: Any) -> Any:
        raise error

    return function


def leave_lock(task: str, task_id: str, *, ttl: int = 60_000, **known: Any) -> None:
    """The lock ``a`` is held by a process of this machine that has ended, or as ``known`` says."""
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    holder = {**json.loads(holder_json(Known(task, task_id))), "pid": process.pid, "boot": "gone", **known}
    request = AcquireRequest("a", new_token(), ttl, 3_600_000, json.dumps(holder))
    assert isinstance(get_backend().acquire(request), Grant)


class TestADuplicate:
    """With it the broker's copy may have gone: so it is sent again, until the first has ended."""

    @pytest.fixture
    def met(self, app: OnceApp) -> Any:
        """``met(act)``: a message that is delivered again while it runs; how that ended, and the copy that was sent.

        ``act``: what its body does then.
        """

        def make(act: Callable[[Any], Any], **options: Any) -> Any:
            def body(task: Any) -> Any:
                app.body()
                if len(app.calls) > 1:
                    return "ran again"
                seen.append(elsewhere(lambda: app.run(message, **AGAIN)))
                seen.append(app.take())
                return act(task)

            seen: list[Any] = []
            app.task(body, bind=True, **{"key": "a", "acks_late": True, **options}).delay()
            message = app.take()
            try:
                first = app.run(message)
            except WorkerShutdown:
                first = "stopped", None
            return first, *seen

        return make

    @pytest.mark.parametrize(
        ("act", "ends"),
        [(lambda task: "ran", "SUCCESS"), (lambda task: 1 / 0, "FAILURE"), (lambda task: task.retry(), "RETRY")],
        ids=["returns", "fails", "retries"],
    )
    def test_ends_when_the_first_has_ended(self, app, met, act, ends):
        """Whether or not the result backend says that there is nothing to do: the first has left a mark."""
        first, second, copy = met(act, unique="until_finish")
        assert (first[0], second[0]) == (ends, "IGNORED")
        assert "again in" in str(second[1])
        assert app.run(copy)[0] == "IGNORED"
        assert app.app.AsyncResult(copy.id).state == ends
        assert len(app.calls) == 1
        if ends == "RETRY":
            assert app.run() == ("SUCCESS", "ran again")
        assert app.take() is None

    @pytest.mark.parametrize(
        ("interruption", "ends"),
        [
            (Reject("later", requeue=True), "REJECTED"),
            (WorkerShutdown(), "stopped"),
            (Retry("its turn is later"), "RETRY"),
        ],
        ids=["rejected", "stopped", "sent again as the same try"],
    )
    def test_runs_if_the_first_is_interrupted(self, app, met, interruption, ends):
        first, second, copy = met(raising(interruption))
        assert (first[0], second[0]) == (ends, "IGNORED")
        assert app.run(copy) == ("SUCCESS", "ran again")
        assert len(app.calls) == 2

    def test_runs_if_the_first_was_killed_before_its_result_was_stored(self, app, met, monkeypatch):
        """A chord would wait for it for ever."""
        with monkeypatch.context() as patch:
            patch.setattr(type(app.app.backend), "mark_as_done", raising(WorkerShutdown()))
            first, _, copy = met(lambda task: "ran")
        assert first[0] == "stopped"
        assert app.run(copy) == ("SUCCESS", "ran again")

    def test_comes_again_and_again_while_the_first_runs(self, app):
        def body():
            app.body()
            copy = message
            for waits in (1, 2, 3):
                assert elsewhere(lambda copy=copy: app.run(copy, **AGAIN))[0] == "IGNORED"
                copy = app.take()
                assert copy.ours["waits"] == waits
            return copy

        app.task(body, key="a", acks_late=True).delay()
        message = app.take()
        state, copy = app.run(message)
        assert state == "SUCCESS"
        assert app.run(copy)[0] == "IGNORED"
        assert len(app.calls) == 1

    def test_of_one_acknowledged_early_is_not_sent_again(self, app, met):
        """The broker brings back nothing, whatever becomes of the first."""
        first, second, copy = met(lambda task: "ran", acks_late=False)
        assert (first, second[0], copy) == (("SUCCESS", "ran"), "IGNORED", None)

    @pytest.mark.django_db(transaction=True)
    @pytest.mark.parametrize("word", ["queue", "coalesce"])
    def test_is_neither_parked_nor_replaced_beside_its_own_run(self, app, word):
        """Although another one, published earlier or later, waits for the lock that it has."""

        def body(task):
            app.body()
            if len(app.calls) > 1:
                return "the other"
            assert elsewhere(lambda: app.run(other))[0] == "IGNORED"
            assert elsewhere(lambda: app.run(message, **AGAIN))[0] == "IGNORED"
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

    def test_of_an_earlier_try_is_dropped(self, app):
        """The broker brings the first try once more while the third runs, which was published by the second."""
        task = app.task(key="a", acks_late=True)
        leave_lock(task.name, task.delay().id, retries=2)
        assert app.run(**AGAIN)[0] == "IGNORED"
        assert app.calls == []
        assert app.take() is None
        assert get_backend().get("a") is not None

    def test_comes_again_if_nobody_sees_in_time_whether_the_first_lives(self, app):
        """On another machine, with a lock that is not renewed and does not end."""
        task = app.task(key="a", acks_late=True, on_conflict="skip", lease=0.1)
        message = task.delay()
        leave_lock(task.name, message.id, proc="elsewhere:1")
        assert app.run(**AGAIN)[0] == "IGNORED"
        assert app.calls == []
        assert app.take().id == message.id

    def test_of_yesterdays_message_with_the_same_id_is_none(self, app):
        """What succeeded yesterday says nothing of today's message."""
        task = app.task(key="a", acks_late=True)
        task.apply_async(task_id="nightly")
        assert app.run() == ("SUCCESS", "ran")
        backend = app.app.backend
        yesterday = {**backend.get_task_meta("nightly"), "date_done": "2020-01-01T00:00:00+00:00"}
        backend.set(backend.get_key_for_task("nightly"), backend.encode(yesterday))
        task.apply_async(task_id="nightly")
        assert app.run(**AGAIN) == ("SUCCESS", "ran")

    @pytest.mark.parametrize("zone", ["America/New_York", "Asia/Shanghai"])
    def test_a_result_in_a_table_of_django_has_the_time_of_the_project(self, app, settings, zone):
        """As of django-celery-results without ``USE_TZ``: of seven hours ago, or of just now."""
        settings.USE_TZ, settings.TIME_ZONE = False, zone
        now = timezone.now()

        class Table(CacheBackend):
            def get_task_meta(self, *which: Any, **how: Any) -> Any:
                return {**super().get_task_meta(*which, **how), "date_done": done}

        task = app.task(key="a", acks_late=False)  # which leaves no mark
        task.backend = Table(app.app, backend="memory://")
        task.delay()
        message = app.take()
        assert app.run(message) == ("SUCCESS", "ran")
        done = now - timedelta(hours=7)
        assert app.run(message, **AGAIN) == ("SUCCESS", "ran")
        done = now
        assert app.run(message, **AGAIN)[0] == "IGNORED"


class TestAfterItsLockHadEnded:
    """A body runs for longer than its timeout, so the message is given to another worker, and no result is stored."""

    @pytest.fixture
    def runs(self, app: OnceApp) -> Any:
        """``runs(error)``: one delivery of a message, in whose body the lock ends, and which raises the error."""

        def body(self: Any) -> str:
            lose("a")
            if self.error is not None:
                raise self.error
            return "ran"

        task = app.task(body, bind=True, key="a", ignore_result=True, takeovers=2)
        task.delay()
        message = app.take()

        def run_once(error: Exception | None = None, **told: Any) -> Any:
            task.__class__.error = error
            return app.run(message, **told)

        return run_once

    @pytest.mark.parametrize(("error", "end"), [(None, "SUCCESS"), (ValueError("codec"), "FAILURE")])
    def test_one_that_ended_is_not_started_again(self, runs, error, end):
        """Every run would outlast its lock, and the message be given on for ever."""
        assert runs(error)[0] == end
        assert runs(**AGAIN)[0] == "IGNORED"

    @pytest.mark.parametrize("error", [StaleClaim("overtaken"), LockLost("overtaken")], ids=["row", "lock"])
    def test_one_that_was_overtaken_is_until_too_many_were(self, runs, error):
        assert runs(error)[0] == "FAILURE"
        for _ in range(3):
            assert isinstance(runs(error, **AGAIN)[1], type(error))
        assert isinstance(runs(**AGAIN)[1], CrashLoop)


@pytest.mark.django_db(transaction=True)
class TestOfAPublisherThatDoesNotKnowTheTask:
    """A message's place in the line is that of its arrival."""

    def test_none_overtakes_a_parked_one(self, app):
        task = app.task(key="unknown to its publisher", on_conflict="queue")
        for argument in ("first", "second"):
            app.app.send_task(task.name, (argument,))
        with TaskLock("unknown to its publisher"):
            assert elsewhere(app.run)[0] == "IGNORED"
        assert app.run()[0] == "IGNORED"  # it parks and promotes the first
        assert [app.run(), app.run()] == [("SUCCESS", "ran")] * 2
        assert app.calls == [(("first",), {}), (("second",), {})]
        assert not parked_messages()

    @pytest.mark.redis
    def test_what_succeeded_does_not_wait_behind_others(self):
        with once_app() as app:  # on Redis, which has the line
            body = task_lock("succeeded", on_conflict="queue")(lambda *args: app.body(*args))
            task = app.task(body, base=Task, acks_late=True)
            first = app.app.send_task(task.name, ("first",))
            message = app.take()
            assert app.run(message) == ("SUCCESS", "ran")
            second = app.app.send_task(task.name, ("second",))
            with TaskLock("succeeded"):
                assert elsewhere(app.run)[0] == "IGNORED"
            assert app.run(message, **AGAIN)[0] == "IGNORED"
            [waiting] = parked_messages()
            assert waiting.task_id == second.id
            assert get_backend().count_before("succeeded", waiting.number + 60_000_000) == 1  # however late others come
            assert app.app.AsyncResult(first.id).state == "SUCCESS"


class Dying:
    """One message, and workers that die of it."""

    def __init__(self, app: OnceApp, **options: Any) -> None:
        self.app = app
        self.starts = 0
        self.act: Callable[[Any], Any] = raising(Killed())

        def body(task: Any) -> Any:
            self.starts += 1
            return self.act(task)

        self.task = app.task(body, bind=True, key="a", acks_late=True, **options)
        self.task.delay()
        self.message = app.take()

    def dies(self, *, leaves: bool = True, **request: Any) -> None:
        """A delivery begins, and its process dies in the body. ``leaves``: its lock has not ended yet."""
        self.act = raising(Killed())
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(run.TaskCaller, "release", lambda caller, lease, error: caller.lock.give(lease))
            with pytest.raises(Killed):
                self.app.run(self.message, **request)
        if leaves:
            leave_lock(self.task.name, self.message.id)

    def comes_back(self, act: Callable[[Any], Any] = lambda task: "ran", **request: Any) -> tuple[str, Any]:
        """A delivery that lives; by default the broker says that it is redelivered."""
        self.act = act
        return self.app.run(self.message, **(request or AGAIN))


def tallies() -> dict[str, int]:
    """The marks and counts, by kind."""
    from django_tasklock.backends.memory.store import store

    return {name.partition(":")[0]: count for name, (count, _) in store.tallies.items()}


class TestTheCount:
    """Every crash is counted once, in the lock store, whoever comes in between; a run that ends in order is none."""

    def test_a_message_that_is_delivered_once_is_not_counted(self, app):
        assert Dying(app).comes_back(delivery_info={}) == ("SUCCESS", "ran")
        assert tallies() == {"done": 1}

    @pytest.mark.parametrize("told", [AGAIN, {"delivery_info": {}}], ids=["by the broker", "given on by the pool"])
    @pytest.mark.parametrize("takeovers", [0, 2])
    def test_each_death_counts(self, app, takeovers, told):
        """1 + takeovers starts."""
        one = Dying(app, takeovers=takeovers)
        one.dies()
        for _ in range(takeovers):
            one.dies(**told)
        state, error = one.comes_back(**told)
        assert state == "FAILURE"
        assert isinstance(error, CrashLoop)
        assert f"{takeovers + 1} workers died of it" in str(error)
        assert one.starts == takeovers + 1

    @pytest.mark.parametrize("takeovers", [0, 2])
    def test_so_does_each_that_is_killed_after_its_lock_has_ended(self, app, takeovers):
        """Nobody finds a lock of it: who kills it counts."""
        one = Dying(app, takeovers=takeovers)
        for told in [{}, *[AGAIN] * takeovers]:
            one.dies(leaves=False, **told)
            duplicates.Earlier(Message(one.task, Context(one.message.headers)), comes_again=False).count_death()
        assert isinstance(one.comes_back()[1], CrashLoop)
        assert one.starts == takeovers + 1

    def test_the_end_is_final(self, app):
        """Also for ``autoretry_for=(Exception,)``, which would begin to count anew; and nothing is kept of it."""
        one = Dying(app, takeovers=0, autoretry_for=(Exception,), unique="until_finish")
        one.dies()
        state, error = one.comes_back()
        assert (state, type(error), app.take()) == ("FAILURE", CrashLoop, None)
        assert one.task.delay().id != one.message.id

    def test_also_where_nobody_can_see_that_it_is_dead(self, app):
        """Of other machines, whose leases are over by then: from the second start on."""
        one = Dying(app, takeovers=1)
        one.dies(leaves=False)
        one.dies(leaves=False, **AGAIN)
        one.dies(leaves=False, **AGAIN)
        assert isinstance(one.comes_back()[1], CrashLoop)
        assert one.starts == 3

    def test_what_was_never_started_does_not_count(self, app):
        """Workers die with the message in their buffers."""
        one = Dying(app, takeovers=1)
        with TaskLock("a"):
            for _ in range(5):
                assert elsewhere(lambda: app.run(one.message, **AGAIN))[0] == "IGNORED"  # rejected: another has it
        one.dies(**AGAIN)
        assert one.comes_back() == ("SUCCESS", "ran")

    def test_a_run_that_ends_in_order_takes_the_count_back(self, app):
        """Its body gives the message back, again and again."""
        one = Dying(app, takeovers=1)
        one.dies()
        for _ in range(5):
            assert one.comes_back(raising(Reject("not yet", requeue=True)))[0] == "REJECTED"
        assert one.comes_back() == ("SUCCESS", "ran")
        assert tallies() == {"starts": 0, "done": 1}

    def test_a_retry_is_a_message_of_its_own(self, app):
        one = Dying(app, takeovers=1)
        one.dies()
        assert one.comes_back(lambda task: task.retry(countdown=0))[0] == "RETRY"
        one.message = app.take()
        leave_lock(one.task.name, one.message.id, retries=1)
        assert one.comes_back() == ("SUCCESS", "ran")

    @pytest.mark.django_db(transaction=True)
    @pytest.mark.parametrize("word", ["retry", "queue"])
    def test_a_death_is_not_forgotten_where_another_takes_the_lock(self, app, word):
        one = Dying(app, takeovers=1, on_conflict=word)
        one.dies()
        one.dies(leaves=False, **AGAIN)
        with TaskLock("a"):
            assert elsewhere(lambda: app.run(one.message, **AGAIN))[0] == ("RETRY" if word == "retry" else "IGNORED")
        if word == "queue":
            assert promote("a", app.app)
        one.message = app.take()
        assert isinstance(one.comes_back(delivery_info={})[1], CrashLoop)
        assert parked_messages() == []

    def test_of_two_that_come_back_one_takes_over(self, app, monkeypatch):
        """By the token of the dead: the other one finds a living one."""
        one = Dying(app)
        one.dies()
        one.act = lambda task: "ran"
        judged = duplicates.alive
        inside: list[Any] = []

        def meanwhile(holder: Any) -> bool | None:
            if not inside:
                inside.append(None)
                inside.append(elsewhere(lambda: app.run(one.message, **AGAIN)))
            return judged(holder)

        monkeypatch.setattr(duplicates, "alive", meanwhile)
        assert app.run(one.message, **AGAIN)[0] in ("SUCCESS", "IGNORED")
        assert inside[1] == ("SUCCESS", "ran")
        assert one.starts == 2


@pytest.mark.django_db(transaction=True)
class TestAnothersLock:
    """That of a process which is known to be dead goes to the next message, whoever's it was."""

    @pytest.mark.parametrize("word", ["skip", "reject", "raise", "retry", "queue", "coalesce", "wait"])
    def test_is_taken_over(self, app, word):
        """F44: new messages were skipped or rejected for a minute."""
        app.task(key="a", on_conflict=word).delay()
        leave_lock("a.task", "other")
        assert app.run() == ("SUCCESS", "ran")
        assert get_backend().records() == []

    def test_is_taken_over_by_a_decorated_task(self, app):
        app.task(task_lock("a", on_conflict="skip")(lambda: "ran"), base=Task).delay()
        leave_lock("a.task", "other")
        assert app.run() == ("SUCCESS", "ran")

    @pytest.mark.parametrize(
        "known", [{"proc": "another:1"}, {"ttl": 3_600_000}], ids=["on another machine", "without a lease"]
    )
    def test_is_left_alone_if_it_may_be_meant(self, app, known):
        app.task(key="a", on_conflict="skip").delay()
        leave_lock("a.task", "other", **known)
        assert app.run()[1]["status"] == "skipped"

    def test_does_not_keep_what_is_parked_behind_it(self, app):
        app.task(key="a", on_conflict="queue").delay()
        with TaskLock("a"):
            assert elsewhere(app.run)[0] == "IGNORED"
        leave_lock("a.task", "other")
        assert promote("a", app.app)
        assert app.run() == ("SUCCESS", "ran")
        assert parked_messages() == []

    def test_of_one_that_comes_back_and_was_replaced_goes_to_the_newer(self, app):
        """F44: it left its lock for a lease, and the newer one behind it."""
        task = app.task(key="a", on_conflict="coalesce", acks_late=True)
        task.delay()
        older = app.take()
        task.delay()
        with TaskLock("a"):
            assert elsewhere(app.run)[0] == "IGNORED"
        leave_lock(task.name, older.id)
        state, value = app.run(older, **AGAIN)
        assert (state, value["reason"]) == ("SUCCESS", "coalesced")
        assert app.run() == ("SUCCESS", "ran")
        assert get_backend().records() == []
