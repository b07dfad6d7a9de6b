"""What Sentinel cannot promise: a replica is promoted that had not got the lock. The row judges, and the first is told.

The servers of each test are its own. What is written to the primary goes to its replica through a cable, which is held
up: so the lock is granted, and lost with the primary.
"""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest
import redis

from django_tasklock import LockLost, StaleClaim
from django_tasklock.types import Released
from tests.support.guards import states
from tests.support.holes import CLAIM, patiently
from tests.support.sentinel import Watched, watched
from tests.support.stores import eventually
from tests.support.twins import token_in
from tests.support.workers import Crew
from tests.testapp.models import Video

pytest_plugins = ["tests.support.redis_fixtures", "tests.support.worker_fixtures"]
pytestmark = [pytest.mark.redis, pytest.mark.database, pytest.mark.django_db(transaction=True), pytest.mark.slow]

DOWN_AFTER = 500  # ms
ROUNDS = int(os.environ.get("TASKLOCK_TEST_FAILOVERS", "2"))


@pytest.fixture
def watch(tmp_path: Path) -> Iterator[Watched]:
    """Servers that Sentinel fails over by itself."""
    with watched(tmp_path, down_after=DOWN_AFTER) as found:
        yield found


def settled(watch: Watched) -> str:
    """What a worker is to run first: its locks are there."""
    tasklock = {"LOCATION": watch.url(), "ON_UNAVAILABLE": "raise"}
    return f"""
        from django.test.utils import override_settings
        override_settings(TASKLOCK={tasklock!r}).enable()
    """


def test_two_hold_the_lock_one_finishes_and_the_other_is_told(crew: Crew, watch: Watched, name: str) -> None:
    video = Video.objects.create()
    a, b = crew.hire_many(2, settled(watch))
    watch.cable.hold()
    a.do(CLAIM.format(name=name, pk=video.pk))
    a.do("claim.update(progress=10)")
    fence = a.do("lock.fence")
    watch.servers[0].kill()
    took = patiently(b, CLAIM.format(name=name, pk=video.pk))
    print(f"\nfailed over in {took:.1f} s, {DOWN_AFTER / 1000} s of which Sentinel waits before it begins")
    assert took < 10
    assert a.do("lock.held") is b.do("lock.held") is True  # the hole
    b.do("claim.update(progress=50)")
    with pytest.raises(StaleClaim, match="newer claim"):
        a.do("claim.update(progress=99)")
    with pytest.raises(StaleClaim, match="newer claim"):
        a.do("claim.finish()")
    assert states(video) == ("processing", 50, 2)
    with pytest.raises(LockLost):
        a.do("lock.ensure_held()")
    assert a.do("lock.held, lock.lost") == (False, True)
    b.do("lock.ensure_held()\nclaim.finish()")
    assert states(video) == ("ready", 50, 2)
    assert a.do("lock.release()") is Released.NOT_YOURS
    with watch.primary() as store:
        assert token_in(store, name) == b.do("lock.token")
    assert b.do("lock.fence") > fence
    assert b.do("lock.release()") is Released.RELEASED


WORK = """
    import random, time
    from django_tasklock import BackendUnavailable, GuardRejected
    from tests.support.guards import GUARD
    def work(names, rows, until):
        journal, refused, stale = [], 0, []
        while not pipe_ends(until):
            which = random.randrange(len(names))
            lock = TaskLock(names[which], lease=8, timeout=60)
            try:
                if not lock.acquire():
                    time.sleep(0.02)
                    continue
            except BackendUnavailable:
                time.sleep(0.05)
                continue
            began = time.monotonic()
            try:
                claim = Claim.take(Video, rows[which], GUARD, lock.token)
                ends = time.monotonic() + random.choice([0.01, 4.0])
                while time.monotonic() < ends and lock.held:
                    claim.update(progress=claim.epoch)
                    found = Video.objects.get(pk=rows[which])
                    if found.lock_epoch == claim.epoch and found.progress != claim.epoch:
                        stale.append((claim.epoch, found.progress))
                    time.sleep(0.05)
                claim.give_back()
            except (StaleClaim, GuardRejected):
                refused += 1
            finally:
                over = time.monotonic()
                journal.append((names[which], began, over if lock.held else min(over, lock.lease.deadline)))
                lock.release()
        return journal, refused, stale
    def pipe_ends(until):
        from pathlib import Path
        return Path(until).exists()
"""


def test_a_campaign(crew: Crew, tmp_path: Path, name: str) -> None:
    """Primaries are killed, or stopped for a while, their replica lagging: stale writes 0, overlaps counted."""
    overlaps = refused = holds = 0
    for number in range(ROUNDS):
        directory = tmp_path / str(number)
        directory.mkdir()
        until = tmp_path / f"until-{number}"
        rows = [Video.objects.create().pk for _ in range(2)]
        names = [f"{name}:{number}:{row}" for row in rows]
        how = "kill" if number % 2 else "stop"
        with watched(directory, down_after=DOWN_AFTER) as watch:
            workers = crew.hire_many(3, settled(watch))
            for worker in workers:
                worker.do(WORK)
                worker.start(f"work({names!r}, {rows!r}, {str(until)!r})")
            with watch.primary() as primary:
                eventually(lambda: len(primary.keys("task_lock:*")) == 2, 20)
            time.sleep(random.uniform(0.1, 1.0))
            watch.cable.hold()
            time.sleep(random.uniform(1.0, 2.0))
            old = watch.servers[0].process
            assert old is not None
            if how == "kill":
                watch.servers[0].kill()
            else:
                os.kill(old.pid, signal.SIGSTOP)
            try:
                with redis.Redis(port=watch.servers[1].port) as promoted:
                    eventually(lambda: promoted.role()[0] == b"master", 30)
                    eventually(lambda: promoted.keys("task_lock:*"), 30)
                time.sleep(1)
            finally:
                if how == "stop":
                    os.kill(old.pid, signal.SIGCONT)  # it believes that it is the primary, until Sentinel tells it
            time.sleep(1.5)
            until.touch()
            journal: list[tuple[str, float, float]] = []
            for worker in workers:
                done, turned_away, stale = worker.done(60)
                assert stale == []
                journal += done
                refused += turned_away
                worker.kill()
        holds += len(journal)
        overlaps += sum(overlapping(journal, one) for one in names)
        for row in rows:
            found = Video.objects.get(pk=row)
            assert found.progress <= found.lock_epoch
    print(f"\n{ROUNDS} failovers, {holds} holds, {overlaps} overlaps, {refused} refused, 0 stale")
    assert holds >= 2 * ROUNDS


def overlapping(journal: list[tuple[str, float, float]], name: str) -> int:
    """How many holds of ``name`` began before an earlier one was over, as far as its holder knew."""
    holds = sorted((began, over) for one, began, over in journal if one == name)
    return sum(after[0] < before[1] for before, after in pairwise(holds))
