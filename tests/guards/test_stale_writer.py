"""Whoever was thought dead and wakes up writes nothing to the guarded row, and takes no lock from its successor.

Two processes, A and B. A claims; then it is stopped past its lease, or its lock is lost in
another way while it runs on; B claims and finishes.
"""

from __future__ import annotations

from typing import Any

import pytest
import redis

from django_tasklock import LockLost, StaleClaim, force_release_task_lock
from django_tasklock.types import Released
from tests.support.guards import states
from tests.support.stores import eventually
from tests.support.twins import token_in
from tests.support.workers import Crew, Worker
from tests.testapp.models import PlainVideo, Video

pytest_plugins = ["tests.support.redis_fixtures", "tests.support.worker_fixtures"]
pytestmark = [pytest.mark.redis, pytest.mark.database, pytest.mark.django_db(transaction=True)]

Store = redis.Redis  # of bytes
LEASE = 3.0
"""Seconds until a successor has the lock of a holder that was stopped, and one that lost it hears of that. Who is to
keep his has a minute, on however slow a machine."""
LOST = pytest.mark.parametrize("how", ["flush", "force", "delete"])
WRITES = ["claim.update(progress=99)", "claim.finish()", "claim.fail()", "claim.give_back()"]


def claims(worker: Worker, name: str, row: Any, lease: float = 60) -> None:
    """Lock and row, as the decorator takes them; waits for the lock if it must."""
    worker.do(f"""
        lost = []
        lock = TaskLock({name!r}, lease={lease}, timeout=600, blocking_timeout=20, on_lost=lost.append)
        assert lock.acquire()
        claim = Claim.take({type(row).__name__}, {row.pk}, GUARD, lock.token)
    """)


def lose(how: str, store: Store, name: str) -> None:
    """Take the lock away from a holder that runs."""
    if how == "flush":
        store.flushdb()
    elif how == "force":
        assert force_release_task_lock(name)
    else:
        assert store.delete(f"task_lock:{name}")


def refused(worker: Worker, row: Any) -> None:
    """Every write of an overtaken claim raises, and changes nothing."""
    before = states(row)
    for write in WRITES:
        with pytest.raises(StaleClaim, match="newer claim"):
            worker.do(write)
        assert states(row) == before, write


def test_a_stopped_holder_is_refused_while_its_successor_works_and_afterwards(
    crew: Crew, store: Store, name: str
) -> None:
    """Gold standard 8.1, 8.17 and 8.39."""
    video = Video.objects.create()
    a, b = crew.hire_many(2)
    claims(a, name, video, LEASE)
    a.do("claim.update(progress=10)")
    fence = a.do("lock.fence")
    a.stop()
    claims(b, name, video)
    b.do("claim.update(progress=50)")
    a.go_on()
    assert a.do("lock.lost, lock.held") == (True, False)
    with pytest.raises(LockLost, match="could not be renewed in time"):
        a.do("lock.ensure_held()")
    refused(a, video)
    assert states(video) == ("processing", 50, 2)
    assert a.do("lock.fence") == fence < b.do("lock.fence")
    assert a.do("lock.release()") is Released.NOT_YOURS
    assert token_in(store, name) == b.do("lock.token")
    b.do("claim.finish()")
    refused(a, video)
    assert states(video) == ("ready", 50, 2)
    assert b.do("lock.release()") is Released.RELEASED
    a.do("eventually(lambda: lost)")
    assert a.do("lost") == ["it could not be renewed in time"]


def test_a_stopped_holder_is_refused_when_its_successor_has_come_and_gone(crew: Crew, store: Store, name: str) -> None:
    video = Video.objects.create()
    a, b = crew.hire_many(2)
    claims(a, name, video, LEASE)
    a.stop()
    claims(b, name, video)
    b.do("claim.update(progress=50)\nclaim.finish()\nassert lock.release()")
    a.go_on()
    refused(a, video)
    assert states(video) == ("ready", 50, 2)
    assert a.do("lock.release()") is Released.GONE
    assert not store.exists(f"task_lock:{name}")


@LOST
def test_a_holder_that_lost_its_lock_while_it_ran_is_refused(crew: Crew, store: Store, name: str, how: str) -> None:
    """Gold standard 8.43 and 8.44."""
    video = Video.objects.create()
    a, b = crew.hire_many(2)
    claims(a, name, video, LEASE)  # it hears of the loss when it renews
    fence = a.do("lock.fence")
    lose(how, store, name)
    claims(b, name, video)
    b.do("claim.update(progress=50)")
    assert b.do("lock.fence") > fence
    eventually(lambda: a.do("lock.lost"))
    assert eventually(lambda: a.do("lost")) == [a.do("from django_tasklock.locks.heartbeat import GONE\nGONE")]
    with pytest.raises(LockLost, match="no longer knows it"):
        a.do("lock.ensure_held()")
    refused(a, video)
    assert a.do("lock.release()") is Released.NOT_YOURS
    assert b.do("lock.held") is True
    assert token_in(store, name) == b.do("lock.token")
    b.do("claim.finish()")
    refused(a, video)
    assert states(video) == ("ready", 50, 2)
    assert b.do("lock.release()") is Released.RELEASED


def test_a_fenced_transaction_of_an_overtaken_claim_is_not_entered(crew: Crew, store: Store, name: str) -> None:
    video = Video.objects.create()
    a, b = crew.hire_many(2)
    claims(a, name, video)
    store.flushdb()
    claims(b, name, video)
    with pytest.raises(StaleClaim):
        a.do("""
            from tests.testapp.models import Note
            with claim.transaction():
                Note.objects.create(video_id=claim.pk, text="stale")
        """)
    assert not video.note_set.exists()
    b.do("claim.finish()")


def test_without_the_two_columns_a_stale_writer_is_refused_once_its_successor_has_finished(
    crew: Crew, store: Store, name: str
) -> None:
    """What the state alone can do, and no more: see ``Claim``."""
    video = PlainVideo.objects.create()
    a, b = crew.hire_many(2)
    claims(a, name, video, LEASE)
    a.stop()
    claims(b, name, video)
    b.do("claim.update(progress=50)\nclaim.finish()\nlock.release()")
    a.go_on()
    refused(a, video)
    assert states(video) == ("ready", 50)


DECORATED = """
@model_lock(Video, "{name}:{{pk}}", pk="pk", guard=GUARD, lease={lease}, timeout=600,
            on_conflict="wait", blocking_timeout=20)
def work(pk, progress, error=None):
    claim = current_claim()
    claim.update(progress=progress)
    say("inside")
    what = told()
    if what == "write":
        claim.update(progress=progress + 1)
    elif what == "swallow":
        try:
            claim.update(progress=progress + 1)
        except StaleClaim:
            pass
    elif what == "fail":
        raise ValueError("the body's own")
    return "done"
"""


@pytest.mark.slow
@pytest.mark.parametrize("how", ["stop", "flush"])
@pytest.mark.parametrize("what", ["write", "swallow", "end", "fail"])
def test_a_decorated_function_end_to_end(crew: Crew, store: Store, name: str, what: str, how: str) -> None:
    """However the overtaken body goes on, its caller is told and the row stays its successor's."""
    video = Video.objects.create()
    a, b = (crew.hire(DECORATED.format(name=name, lease=lease)) for lease in (LEASE, 60))
    a.start(f"work({video.pk}, 10)").hears()
    if how == "stop":
        a.stop()
    else:
        store.flushdb()
    b.start(f"work({video.pk}, 50)").hears()
    b.tell("end")
    assert b.done() == "done"
    assert states(video) == ("ready", 50, 2)
    if how == "stop":
        a.go_on()
    a.tell(what)
    with pytest.raises(ValueError if what == "fail" else StaleClaim) as caught:
        a.done()
    if what == "fail":
        assert "its row was not marked" in "".join(caught.value.__notes__)
    assert states(video) == ("ready", 50, 2)
    assert not store.exists(f"task_lock:{name}:{video.pk}")
    assert a.do("here(current_lock)") is None


def test_a_decorated_function_does_not_release_its_successors_lock(crew: Crew, store: Store, name: str) -> None:
    video = Video.objects.create()
    a, b = (crew.hire(DECORATED.format(name=name, lease=lease)) for lease in (LEASE, 60))
    a.start(f"work({video.pk}, 10)").hears()
    a.stop()
    b.start(f"work({video.pk}, 50)").hears()
    token = token_in(store, f"{name}:{video.pk}")
    a.go_on()
    a.tell("end")
    with pytest.raises(StaleClaim):
        a.done()
    assert token_in(store, f"{name}:{video.pk}") == token is not None
    assert states(video) == ("processing", 50, 2)
    b.tell("write")
    assert b.done() == "done"
    assert states(video) == ("ready", 51, 2)
