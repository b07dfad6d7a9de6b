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
from pathlib import Path

import pytest
import redis

from django_tasklock.types import Released
from tests.support.guarded_campaign import WORK, outcome_of, settled
from tests.support.holes import claims, row_judges
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


def setting(watch: Watched) -> dict[str, str]:
    """Of a worker whose locks are there."""
    return {"LOCATION": watch.url(), "ON_UNAVAILABLE": "raise"}


def test_two_hold_the_lock_one_finishes_and_the_other_is_told(crew: Crew, watch: Watched, name: str) -> None:
    video = Video.objects.create()
    a, b = crew.hire_many(2, settled(setting(watch)))
    watch.cable.hold()
    claims(a, name, video)
    watch.servers[0].kill()
    took = row_judges(a, b, name, video)
    print(f"\nfailed over in {took:.1f} s, {DOWN_AFTER / 1000} s of which Sentinel waits before it begins")
    assert took < 10
    with watch.primary() as store:
        assert token_in(store, name) == b.do("lock.token")
    assert b.do("lock.release()") is Released.RELEASED


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
            workers = crew.hire_many(3, settled(setting(watch)))
            for worker in workers:
                worker.do(WORK)
                worker.start(f"work({names!r}, {rows!r}, {str(until)!r}, 4.0, lease=8)")
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
            seen = outcome_of(workers)
            for worker in workers:
                worker.kill()
        assert seen.stale == 0
        refused += seen.refused
        holds += len(seen.holds)
        overlaps += len(seen.overlaps)
        for row in rows:
            found = Video.objects.get(pk=row)
            assert found.progress <= found.lock_epoch
    print(f"\n{ROUNDS} failovers, {holds} holds, {overlaps} overlaps, {refused} refused, 0 stale")
    assert holds >= 2 * ROUNDS
