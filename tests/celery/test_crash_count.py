"""Every crash is counted once: whatever fails meanwhile, and whoever comes in between."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

from django_tasklock.backends import get_backend
from django_tasklock.backends.contract.codec import text_of
from django_tasklock.celery.delivery import duplicates, postrun, run
from django_tasklock.celery.parking import store as parking
from django_tasklock.celery.parking.envelope import sign
from django_tasklock.celery.parking.promotion import Promoter
from django_tasklock.host import Task
from django_tasklock.locks.holder import holder_json
from django_tasklock.models import ParkedMessage
from django_tasklock.types import AcquireRequest, Grant
from tests.support.celery_site.courier import Courier
from tests.support.celery_site.redelivery_tasks import TROUBLE
from tests.support.guards import new_token

pytest_plugins = ["tests.support.celery_site.fixtures"]
pytestmark = [
    pytest.mark.redis,
    pytest.mark.filterwarnings("ignore:Call to deprecated setex:DeprecationWarning"),  # by Celery's results
]
SITE_TASKS = ["tests.support.celery_site.redelivery_tasks", "tests.support.celery_site.once_tasks"]

NAME = "hold:a"


@pytest.mark.parametrize("trouble", ["unmarked", "reply", "looks", "remove"])
def test_whatever_fails_meanwhile(celery_site, monkeypatch, trouble):
    """The pool gives the message on, of which the broker knows nothing; the lock store frees the lock and its reply
    is lost; the row cannot be read at first; the row cannot be removed at the end."""
    # What a pool gives on it does at once. Here it is given back first, and a promoter would be sooner.
    celery_site.configure(lease=60, tasks=("tests.support.celery_site.no_promoter",) if trouble == "unmarked" else ())
    monkeypatch.setenv(TROUBLE, trouble)
    worker = celery_site.worker()
    result = celery_site.publish("frail_once", "a", until=celery_site.gate())
    for number in (1, 2):
        worker.kill_one(celery_site.started("a", number).pid)
    celery_site.wait_until(lambda: result.ready() or len(celery_site.events("start", "a")) > 2)
    assert len(celery_site.events("start", "a")) == 2
    assert type(result.result).__name__ == "CrashLoop"


class Interleaved:
    """A delivery in this process, and what others do at one moment of it."""

    def __init__(self, site: Any, monkeypatch: Any, task: str, **options: Any) -> None:
        self.site, self.monkeypatch = site, monkeypatch
        self.task = site.task(task)
        self.result = site.publish(task, "a", **options)
        self.courier = Courier(site)

    def other(self, boot: str = "other") -> str:
        """Another process, which ran this message and is dead."""
        ended = subprocess.Popen([sys.executable, "-c", ""])
        ended.wait()
        here = json.loads(holder_json(Task(self.task.name, self.result.id)))
        return json.dumps({**here, "pid": ended.pid, "boot": boot})

    def lock(self, holder: str, until: int = 60_000) -> None:
        """Somebody takes the lock, until then at the most (milliseconds)."""
        assert isinstance(get_backend().acquire(AcquireRequest(NAME, new_token(), 60_000, until, holder)), Grant)

    def unlock(self) -> None:
        """Somebody frees it."""
        get_backend().remove(NAME, get_backend().get(NAME).token)

    def starts(self, crashes: int, holder: str) -> None:
        """Another delivery has the lock and begins."""
        parking.mark_started(NAME, 1, "queue", self.task.name, self.result.id, self.sealed(), holder, crashes)

    def sealed(self) -> str:
        """The message, as the row has it."""
        signature = self.task.s("a").set(task_id=self.result.id)
        return sign(
            {"name": NAME, "type": "application/json", "encoding": "utf-8", "text": json.dumps(dict(signature))}
        )

    def after(self, where: Any, verb: str, act: Any) -> None:
        """Do this when that has been done."""
        done = getattr(where, verb)

        def both(*what: Any, **options: Any) -> Any:
            answer = done(*what, **options)
            act()
            return answer

        self.monkeypatch.setattr(where, verb, both)

    def before(self, where: Any, verb: str, act: Any) -> None:
        """Do this when that is about to be done; it is told what that is told."""
        todo = getattr(where, verb)

        def both(*what: Any, **options: Any) -> Any:
            act(*what)
            return todo(*what, **options)

        self.monkeypatch.setattr(where, verb, both)

    def row(self) -> list[tuple[str, int]]:
        """State and crashes."""
        return list(ParkedMessage.objects.values_list("state", "crashes"))


class TestAnotherTakesTheLock:
    """Between the end of the dead one's lock and the beginning of ours."""

    def meets(self, celery_site, monkeypatch, *what, **options):
        one = Interleaved(celery_site, monkeypatch, *what, **options)
        one.lock(one.other())
        one.after(duplicates, "free_dead_lock", lambda: one.lock('{"host": "elsewhere", "pid": 1}'))
        one.courier.run(redelivered=True)
        return one

    def test_it_is_parked(self, celery_site, monkeypatch):
        one = self.meets(celery_site, monkeypatch, "late_hold")
        assert one.row() == [("parked", 1)]

    def test_it_is_put_off(self, celery_site, monkeypatch):
        one = self.meets(celery_site, monkeypatch, "late_once", once={"on_conflict": "retry"})
        assert one.result.state == "RETRY"
        assert one.courier.take().message.headers["tasklock"]["crashes"] == [1, 0]


class TestOfThreeDeliveries:
    def test_one_that_meets_the_first_does_not_forget_the_third(self, celery_site, monkeypatch):
        """The first is killed when the second has met it, and the third takes over before the second has left."""
        one = Interleaved(celery_site, monkeypatch, "late_once")
        first, third = one.other("first"), one.other("third")
        one.lock(first)
        monkeypatch.setattr(duplicates, "alive", lambda holder: holder.boot == "first")

        def takes_over():
            one.unlock()
            one.lock(third)
            one.starts(2, third)

        one.after(type(get_backend()), "set_flag", takes_over)
        one.courier.run(redelivered=True)
        assert one.row() == [("running", 2)]

    def test_one_that_was_promoted_meanwhile_does_not_forget_who_runs_then(self, celery_site, monkeypatch):
        """Promoted when the lock of the dead one was freed and not yet taken; begun when that was given back."""
        one = Interleaved(celery_site, monkeypatch, "late_hold")
        one.lock(one.other())
        one.starts(1, one.other())
        one.after(duplicates, "free_dead_lock", lambda: Promoter(celery_site.app).poll())
        get_backend().set_flag(postrun.ROW_FLAG + one.result.id)  # else nobody looks whether there is a row to forget
        one.before(parking, "remove", lambda *what: one.starts(2, one.other("promoted")))
        one.courier.run(redelivered=True)
        assert celery_site.events("start") == []
        assert celery_site.waiting() == 1
        assert one.row() == [("running", 2)]

    def test_what_another_writes_for_it_does_not_end_it(self, celery_site, monkeypatch):
        """It has taken over, and before it looks once more another delivery meets it and keeps a row for it."""
        one = Interleaved(celery_site, monkeypatch, "late_once")
        one.lock(one.other())

        def meets(call):
            entry = call.history.entry
            parking.record_running(*entry.columns, entry.sealed(), text_of(get_backend().get(NAME).holder))
            get_backend().set_flag(postrun.ROW_FLAG + one.result.id)

        one.before(run.TaskCaller, "check_with_lock", meets)
        one.courier.run(redelivered=True)
        assert one.result.get(timeout=5)["status"] == "success"
        assert one.row() == []

    @pytest.mark.parametrize("when", ["free_dead_lock", "left"])
    def test_one_that_comes_after_a_crash_loop_is_not_started(self, celery_site, monkeypatch, when):
        """A promoter has put the message back too, and that one is over, when this one has freed the lock of the dead
        one; and when all of them have left."""
        one = Interleaved(celery_site, monkeypatch, "frail_once")
        dead = one.other()
        one.starts(1, dead)
        first = one.courier.take(redelivered=True)

        def loops():
            Promoter(celery_site.app).poll()
            assert one.row() == [("promoted", 2)]
            one.courier.run()
            assert one.result.state == "FAILURE"
            assert one.row() == []

        if when == "free_dead_lock":
            one.lock(dead)
            one.after(duplicates, "free_dead_lock", loops)
        else:
            loops()
        first.execute()
        assert celery_site.events("start") == []
        assert type(one.result.result).__name__ == "CrashLoop"

    def test_a_crash_loop_has_its_row_until_its_result_is_stored(self, celery_site, monkeypatch):
        """Whoever looks before that must not think that nobody has it."""
        one = Interleaved(celery_site, monkeypatch, "frail_once")
        one.starts(2, one.other())
        rows: list[list[tuple[str, int]]] = []
        one.before(celery_site.app.backend, "mark_as_failure", lambda *what: rows.append(one.row()))
        one.courier.run(redelivered=True)
        assert rows == [[("ended", 3)]]
        assert one.row() == []


class TestOneDeath:
    """Is counted by whoever puts the message back, or by whoever frees the lock of the dead process: by one of them."""

    def starts(self, celery_site, monkeypatch, holder):
        """How many deaths are counted when it starts behind the lock of a dead ``holder``, put back by a promoter."""
        one = Interleaved(celery_site, monkeypatch, "late_once")
        first = one.other("first")
        one.starts(1, first)
        one.courier.take()  # the broker's own redelivery comes later
        one.lock(one.other(holder), until=600_000)
        Promoter(celery_site.app).poll()
        assert one.row() == [("promoted", 2)]
        counted: list[int] = []
        one.before(parking, "mark_started", lambda *what: counted.append(what[-1]))
        one.courier.run()
        assert one.result.get(timeout=5)["status"] == "success"
        return counted

    def test_of_one_that_was_promoted_before_its_lock_was_free(self, celery_site, monkeypatch):
        """A promoter passes over the lock of a dead process, and has counted its death."""
        assert self.starts(celery_site, monkeypatch, "first") == [2]

    def test_of_one_that_began_after_that(self, celery_site, monkeypatch):
        """Its start could not be written: its row still says that it was promoted, and names the one before."""
        assert self.starts(celery_site, monkeypatch, "second") == [3]

    def test_of_one_that_had_ended(self, celery_site, monkeypatch):
        """Killed while its result was stored, it has not died of its message."""
        one = Interleaved(celery_site, monkeypatch, "late_once")
        dead = one.other("first")
        one.starts(1, dead)
        parking.mark_ended(one.result.id)
        one.lock(dead)
        one.before(parking, "mark_started", lambda *what: counted.append(what[-1]))
        counted: list[int] = []
        one.courier.run(redelivered=True)
        assert counted == [1]
