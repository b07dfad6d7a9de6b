"""Every crash is counted once, in the lock store, whoever comes in between; a run that ends in order is none."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
from celery.exceptions import Reject

from django_tasklock import TaskLock
from django_tasklock.backends import get_backend
from django_tasklock.backends.memory import reset
from django_tasklock.celery import parked_messages
from django_tasklock.celery.delivery import duplicates, run
from django_tasklock.celery.queue.promoter import promote
from django_tasklock.exceptions import CrashLoop
from django_tasklock.host import Task
from django_tasklock.locks.holder import holder_json
from django_tasklock.types import AcquireRequest, Grant
from tests.support.guards import MEMORY, elsewhere, new_token
from tests.support.once_app import once_app

AGAIN: Any = {"delivery_info": {"redelivered": True}}


@pytest.fixture
def app(settings):
    settings.TASKLOCK = MEMORY
    reset()
    with once_app() as made:
        yield made


class Dying:
    """One message, and workers that die of it."""

    def __init__(self, app: Any, **options: Any) -> None:
        self.app = app
        self.starts = 0
        self.act: Callable[[Any], Any] = dying

        def body(task: Any) -> Any:
            self.starts += 1
            return self.act(task)

        self.task = app.task(body, bind=True, key="a", acks_late=True, **options)
        self.task.delay()
        self.message = app.take()

    def leave_lock(self, **known: Any) -> None:
        """The lock is held by a process of this machine that has ended while it ran this message."""
        ended = subprocess.Popen([sys.executable, "-c", ""])
        ended.wait()
        holder = {**json.loads(holder_json(Task(self.task.name, self.message.id))), "pid": ended.pid, "boot": "gone"}
        request = AcquireRequest("a", new_token(), 60_000, 3_600_000, json.dumps({**holder, **known}))
        assert isinstance(get_backend().acquire(request), Grant)

    def dies(self, *, leaves: bool = True, **request: Any) -> None:
        """A delivery begins, and its process dies in the body. ``leaves``: its lock has not ended yet."""
        self.act = dying
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(run.TaskCaller, "release", lambda caller, lease, error: caller.lock.give(lease))
            with pytest.raises(Killed):
                self.app.run(self.message, **request)
        if leaves:
            self.leave_lock()

    def comes_back(self, act: Callable[[Any], Any] = lambda task: "ran", **request: Any) -> tuple[str, Any]:
        """A delivery that lives; by default the broker says that it is redelivered."""
        self.act = act
        return self.app.run(self.message, **(request or AGAIN))


def dying(task: Any) -> None:
    raise Killed


def give_back(task: Any) -> None:
    raise Reject("not yet", requeue=True)


class Killed(BaseException):
    """Stands for ``kill -9``: nobody catches it."""


class TestTheCount:
    def test_a_message_that_is_delivered_once_leaves_no_mark(self, app):
        one = Dying(app)
        assert one.comes_back(delivery_info={}) == ("SUCCESS", "ran")
        assert tallies() == {}

    @pytest.mark.parametrize("takeovers", [0, 2])
    def test_each_death_counts(self, app, takeovers):
        """1 + takeovers starts."""
        one = Dying(app, takeovers=takeovers)
        one.dies()
        for _ in range(takeovers):
            one.dies(**AGAIN)
        state, error = one.comes_back()
        assert state == "FAILURE"
        assert isinstance(error, CrashLoop)
        assert f"{takeovers + 1} workers died of it" in str(error)
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
            assert one.comes_back(give_back)[0] == "REJECTED"
        assert one.comes_back() == ("SUCCESS", "ran")
        assert set(tallies().values()) <= {0}

    def test_a_retry_is_a_message_of_its_own(self, app):
        one = Dying(app, takeovers=1)
        one.dies()
        assert one.comes_back(lambda task: task.retry(countdown=0))[0] == "RETRY"
        one.message = app.take()
        one.leave_lock(retries=1)
        assert one.comes_back() == ("SUCCESS", "ran")


class TestAnotherTakesTheLock:
    """A death is not forgotten where the message does not get the lock afterwards."""

    def test_it_is_put_off(self, app):
        one = Dying(app, takeovers=1, on_conflict="retry")
        one.dies()
        one.dies(leaves=False, **AGAIN)
        with TaskLock("a"):
            assert elsewhere(lambda: app.run(one.message, **AGAIN))[0] == "RETRY"
        one.message = app.take()
        assert isinstance(one.comes_back(delivery_info={})[1], CrashLoop)

    @pytest.mark.django_db(transaction=True)
    def test_it_is_parked(self, app):
        one = Dying(app, takeovers=1, on_conflict="queue")
        one.dies()
        one.dies(leaves=False, **AGAIN)
        with TaskLock("a"):
            assert elsewhere(lambda: app.run(one.message, **AGAIN))[0] == "IGNORED"
        assert len(parked_messages()) == 1
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


def tallies() -> dict[str, int]:
    from django_tasklock.backends.memory.store import store

    return dict(store.tallies)
