"""What an operator is shown of locks: lists, one lock in every state, and why it is in it.

Gold standard 8.46: the explanation of every class of state.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator

import pytest

from django_tasklock import TaskLock, current_lock, model_lock
from django_tasklock.backends import get_backend
from django_tasklock.backends.contract.lists import Query
from django_tasklock.backends.memory import advance
from django_tasklock.celery.queue import rows as table
from django_tasklock.locks.holder import holder_json, message_json
from django_tasklock.operations import LockDetail, LockState, RowRef, count_locks, get_lock, list_locks
from tests.support.guards import GUARD
from tests.support.public import in_store
from tests.support.stores import an_ask, granted, stores
from tests.testapp.models import Video

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(params=stores("redis"))
def store(request, settings) -> Iterator[str]:
    """The name of the store in force, empty."""
    yield from in_store(request.param, settings)


memory_only = pytest.mark.parametrize("store", stores("memory"), indirect=True)


def dead_holder() -> str:
    """A holder whose process has ended, on this machine."""
    ended = subprocess.Popen(["true"])
    ended.wait()
    known = json.loads(holder_json())
    machine = known["proc"].rpartition(":")[0]
    return json.dumps({**known, "pid": ended.pid, "boot": "another", "proc": f"{machine}:1"}, separators=(",", ":"))


def park(name: str, task_id: str) -> None:
    message = json.dumps({"name": name, "type": "json", "encoding": "utf-8", "text": "{}"})
    assert table.park(name, 1, "queue", "videos.process", task_id, message)


def sentences(detail: LockDetail) -> str:
    return " ".join(detail.explanation)


class TestList:
    def test_what_is_shown_of_a_lock(self, store):
        video = Video.objects.create()
        seen = []

        @model_lock(Video, "film:{pk}", pk="pk", guard=GUARD)
        def work(pk: int) -> None:
            park(f"film:{pk}", "one")
            park(f"film:{pk}", "two")
            seen.extend(list_locks().locks)

        work(video.pk)
        [lock] = seen
        assert lock.info.name == f"film:{video.pk}"
        assert lock.state is LockState.LIVE
        assert lock.row == RowRef("testapp.video", str(video.pk))
        assert str(lock.row) == f"testapp.video:{video.pk}"
        assert lock.parked == 2
        assert lock.alive is True
        assert lock.lapsed_for is lock.asked_for is None

    def test_pages(self, store):
        for number in range(25):
            granted(get_backend().acquire(an_ask(f"video:{number}", ttl=60_000 + number * 1000)))
        seen: list[str] = []
        query = Query(limit=10)
        while True:
            page = list_locks(query)
            assert page.total == 25
            seen += [lock.info.name for lock in page.locks]
            if page.next is None:
                break
            query = query._replace(offset=page.next)
        assert seen == [f"video:{number}" for number in range(25)]
        assert count_locks() == (25, 0, 0, 0, 0)

    def test_those_of_ended_processes(self, store):
        """They are counted, and a page of them has no other, whatever the order; nor one that a message has."""
        for number in range(3):
            granted(get_backend().acquire(an_ask(f"dead:{number}", ttl=60_000 + number * 1000, holder=dead_holder())))
        granted(get_backend().acquire(an_ask("message", holder=message_json("a.task", "an-id"))))
        granted(get_backend().acquire(an_ask("far")))
        with TaskLock("mine"):
            first = list_locks(Query(order="age", limit=2), dead=True)
            assert [lock.info.name for lock in first.locks] == ["dead:0", "dead:1"]
            assert (first.total, first.next) == (3, 2)
            rest = list_locks(Query(limit=2, offset=2), dead=True)
            assert [lock.info.name for lock in rest.locks] == ["dead:2"]
            assert all(lock.dead for lock in [*first.locks, *rest.locks])
            assert (rest.total, rest.next) == (3, None)
            assert list_locks(Query(text="EAD:1"), dead=True).total == 1
            assert (count_locks().live, count_locks().dead) == (6, 3)


class TestStates:
    def test_live(self, store):
        with TaskLock("video:1"):
            detail = get_lock("video:1")
        assert detail.lock.state is LockState.LIVE
        assert "its process runs" in sentences(detail)
        assert "If its holder dies it is free within" in sentences(detail)

    def test_of_another_machine(self, store):
        granted(get_backend().acquire(an_ask("video:1", holder='{"host":"far","pid":7,"proc":"x.1:2"}')))
        detail = get_lock("video:1")
        assert detail.lock.alive is None
        assert "cannot be seen from here" in sentences(detail)

    def test_dead(self, store):
        granted(get_backend().acquire(an_ask("video:1", holder=dead_holder())))
        detail = get_lock("video:1")
        assert detail.lock.alive is False
        assert "has ended without giving it back" in sentences(detail)
        assert "if it is not swept or released before" in sentences(detail)

    @memory_only
    def test_overdue(self, store):
        granted(get_backend().acquire(an_ask("video:1", ttl=60_000, hold=10_000)))
        advance(20)
        assert "beyond its timeout" in sentences(get_lock("video:1"))

    def test_held_for_a_message(self, store):
        granted(get_backend().acquire(an_ask("video:1", holder=message_json("a.task", "an-id"))))
        detail = get_lock("video:1")
        assert detail.lock.alive is None
        assert "message of its task that is on its way" in sentences(detail)


class TestRow:
    @pytest.fixture(autouse=True)
    def _known(self):
        """The guard of a row that is asked about, whichever modules have been imported."""
        GUARD.register(Video)

    @pytest.fixture
    def video(self) -> Video:
        return Video.objects.create()

    def shown(self, video: Video) -> LockDetail:
        seen = []

        @model_lock(Video, "film:{pk}", pk="pk", guard=GUARD)
        def work(pk: int) -> None:
            seen.append(get_lock(current_lock().name))

        work(video.pk)
        return seen[0]

    def test_both_sides(self, store, video):
        detail = self.shown(video)
        row = detail.row
        assert row.ref == RowRef("testapp.video", str(video.pk))
        assert (row.exists, row.field, row.state, row.epoch, row.fenced) == (True, "status", "processing", 1, True)
        assert row.agrees
        assert row.fingerprint == detail.lock.info.fingerprint
        assert row.states[0] == GUARD.retry
        assert "failed" in row.states
        assert "claimed by this holder" in sentences(detail)

    def test_claimed_by_somebody_else(self, store, video):
        Video.objects.filter(pk=video.pk).update(lock_token="0" * 32, status="processing")
        granted(get_backend().acquire(an_ask("film:1", holder=holder_json(row=f"testapp.video:{video.pk}"))))
        detail = get_lock("film:1")
        assert not detail.row.agrees
        assert "claimed by another" in sentences(detail)

    @pytest.mark.parametrize(
        ("row", "sentence"),
        [
            ("testapp.video:987654", "does not exist any more"),
            ("testapp.video:not-a-number", "knows no guard"),
            ("nowhere.film:1", "knows no guard"),
        ],
    )
    def test_of_which_nothing_is_known(self, store, row, sentence):
        granted(get_backend().acquire(an_ask("film:1", holder=holder_json(row=row))))
        assert sentence in sentences(get_lock("film:1"))
