"""Stores on several servers, while these fail: no guarded row accepts a stale write, whoever believes to have the lock.

A replica that is promoted may not have got what was granted last, so that two hold one lock: with Sentinel and in a
Cluster that is made to happen, and counted. While a slot moves nobody overlaps.
"""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from django.db.models import Sum
from redis.exceptions import RedisError

from django_tasklock import BackendUnavailable, LockLost, StaleClaim
from django_tasklock.types import Released
from tests.support.cluster import Cluster, Node, clustered
from tests.support.cluster_acts import SLOT, away
from tests.support.guards import states
from tests.support.sentinel import watched
from tests.support.stores import eventually
from tests.support.workers import Crew, Worker
from tests.testapp.models import Video

pytest_plugins = ["tests.support.redis_fixtures", "tests.support.worker_fixtures"]
pytestmark = [pytest.mark.redis, pytest.mark.database, pytest.mark.django_db(transaction=True), pytest.mark.slow]

SECONDS = float(os.environ.get("TASKLOCK_TEST_SERVERS", "6"))
ROWS = 4
CLAIM = """
    lock = TaskLock({name!r}, lease=60, timeout=600, blocking_timeout=20)
    assert lock.acquire()
    claim = Claim.take(Video, {pk}, GUARD, lock.token)
"""


def settled(location: str) -> str:
    """What a worker is to run first: its locks are there."""
    return f"""
        from django.test.utils import override_settings
        override_settings(TASKLOCK={dict(LOCATION=location, ON_UNAVAILABLE="raise")!r}).enable()
    """


class Primary(NamedTuple):
    """The server of the locks."""

    location: str
    lag: Callable[[], object]
    """From now on nothing reaches its replica."""
    die: Callable[[], object]
    """Its replica is promoted."""


@contextmanager
def behind_sentinel(directory: Path) -> Iterator[Primary]:
    with watched(directory, down_after=500) as watch:
        yield Primary(watch.url(), watch.cable.hold, watch.servers[0].kill)


@contextmanager
def in_a_cluster(directory: Path) -> Iterator[Primary]:
    with clustered(directory, replicas=1) as cluster:
        primary = cluster.serving(SLOT)
        replica = cluster.replicas[cluster.primaries.index(primary)]

        def die() -> None:
            primary.kill()
            os.kill(replica.pid, signal.SIGCONT)

        yield Primary(cluster.url, lambda: lag_behind(primary, replica), die)


def lag_behind(primary: Node, replica: Node) -> None:
    """Stop the replica and close its connection: nothing is on its way when the primary dies."""
    os.kill(replica.pid, signal.SIGSTOP)
    primary.client.execute_command("CLIENT", "KILL", "TYPE", "slave")


@pytest.mark.parametrize("servers", [behind_sentinel, in_a_cluster])
def test_two_hold_the_lock_one_finishes_and_the_other_is_told(
    crew: Crew, tmp_path: Path, name: str, servers: Any
) -> None:
    video = Video.objects.create()
    with servers(tmp_path) as primary:
        a, b = crew.hire_many(2, settled(primary.location))
        primary.lag()
        a.do(CLAIM.format(name=name, pk=video.pk))
        a.do("claim.update(progress=10)")
        primary.die()
        eventually(lambda: takes(b, name, video), 60)
        assert a.do("lock.held") is b.do("lock.held") is True  # the hole
        b.do("claim.update(progress=50)")
        for write in ("claim.update(progress=99)", "claim.finish()"):
            with pytest.raises(StaleClaim, match="newer claim"):
                a.do(write)
        assert states(video) == ("processing", 50, 2)
        with pytest.raises(LockLost):
            a.do("lock.ensure_held()")
        assert a.do("lock.held, lock.lost") == (False, True)
        b.do("lock.ensure_held()\nclaim.finish()")
        assert states(video) == ("ready", 50, 2)
        assert b.do("lock.fence") > a.do("lock.fence")
        assert a.do("lock.release()") is Released.NOT_YOURS
        assert b.do("lock.release()") is Released.RELEASED


def takes(worker: Worker, name: str, row: Any) -> bool:
    """Whether it could take the lock and the row: the store is there again."""
    try:
        worker.do(CLAIM.format(name=name, pk=row.pk))
    except BackendUnavailable:
        return False
    return True


WORK = """
    import random, time
    from pathlib import Path
    from django_tasklock import BackendUnavailable, GuardRejected
    def work(names, rows, until, longest):
        journal, stale = [], 0
        while not Path(until).exists():
            which = random.randrange(len(names))
            lock = TaskLock(names[which], lease=6, timeout=60, blocking_timeout=random.choice([None, 2]))
            try:
                if not lock.acquire():
                    time.sleep(0.005)
                    continue
            except BackendUnavailable:
                time.sleep(0.05)
                continue
            began = time.monotonic()
            try:
                claim = Claim.take(Video, rows[which], GUARD, lock.token)
                ends = time.monotonic() + random.choice([0.01, 0.1, longest])
                while time.monotonic() < ends and lock.held:
                    claim.update(progress=claim.epoch)
                    found = Video.objects.get(pk=rows[which])
                    stale += found.lock_epoch == claim.epoch and found.progress != claim.epoch
                    time.sleep(0.02)
                claim.give_back()
            except (StaleClaim, GuardRejected):
                pass
            finally:
                over = time.monotonic()
                journal.append((names[which], began, over if lock.held else min(over, lock.lease.deadline)))
                try:
                    lock.release()
                except BackendUnavailable:
                    pass
        return journal, stale
"""
"""What the workers of a campaign do. They return each hold with the time until which its holder could count on it, and
the writes of somebody else that a row has accepted."""


def claims() -> int:
    """How many there were."""
    return int(Video.objects.aggregate(number=Sum("lock_epoch"))["number"])


def overlaps_in_a_campaign(
    crew: Crew, directory: Path, settings: str, rage: Callable[[float], object], longest: float
) -> int:
    """Four workers on four rows, while ``rage(ends)`` does harm to the servers: how often two had one lock."""
    until = directory / "until"
    rows = [Video.objects.create().pk for _ in range(ROWS)]
    names = [f"campaign:{directory}:{row}" for row in rows]
    workers = crew.hire_many(4, settings)
    for worker in workers:
        worker.do(WORK)
        worker.start(f"work({names!r}, {rows!r}, {str(until)!r}, {longest})")
    eventually(lambda: claims() > ROWS)
    rage(time.monotonic() + SECONDS)
    before = claims()
    eventually(lambda: claims() > before + ROWS, 60)  # they go on
    until.touch()
    journals, stale = zip(*(worker.done(60) for worker in workers), strict=True)
    holds = sorted(hold for journal in journals for hold in journal)
    overlaps = sum(one[0] == two[0] and two[1] < one[2] - 0.001 for one, two in pairwise(holds))
    print(f"\n{len(holds)} holds, {overlaps} overlaps, {sum(stale)} stale writes")
    assert sum(stale) == 0
    return overlaps


def moves(cluster: Cluster, ends: float) -> None:
    """Move the slot of the locks, sometimes halfway for a while."""
    while time.monotonic() < ends:
        target = away(cluster)
        source = cluster.begin_move(SLOT, target)
        cluster.move_keys(SLOT, source, target, random.choice([1, 3, 100]))
        time.sleep(random.choice([0.0, 0.05, 0.4]))
        while cluster.move_keys(SLOT, source, target):
            pass
        cluster.end_move(SLOT, target)
        time.sleep(random.uniform(0.0, 0.2))


def test_while_the_slot_of_a_cluster_moves_nobody_overlaps(crew: Crew, tmp_path: Path) -> None:
    with clustered(tmp_path) as cluster:
        rage = partial(moves, cluster)
        assert overlaps_in_a_campaign(crew, tmp_path, settled(cluster.url), rage, longest=1) == 0


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
def test_primaries_of_a_cluster_fail_whose_replicas_lag(crew: Crew, tmp_path: Path, how: signal.Signals) -> None:
    with clustered(tmp_path, replicas=1) as cluster:

        def fail(ends: float) -> None:
            primary = cluster.serving(SLOT)
            replica = cluster.replicas[cluster.primaries.index(primary)]
            while time.monotonic() < ends:
                lag_behind(primary, replica)
                time.sleep(0.8)
                os.kill(primary.pid, how)
                os.kill(replica.pid, signal.SIGCONT)
                eventually(lambda replica=replica: is_primary(replica), 30)
                if how is signal.SIGSTOP:
                    time.sleep(0.5)
                    os.kill(primary.pid, signal.SIGCONT)  # it believes that it is the primary, until it hears
                else:
                    primary.kill()  # it has ended
                    primary.start()
                eventually(lambda primary=primary: follows(primary), 30)
                primary, replica = replica, primary

        overlaps_in_a_campaign(crew, tmp_path, settled(cluster.url), fail, longest=5)


def is_primary(node: Node) -> bool:
    """Whether it serves slots now."""
    try:
        return bool(node.client.role()[0] == b"master")
    except RedisError:
        return False


def follows(node: Node) -> bool:
    """Whether it follows another, and has all that this one has."""
    try:
        return node.client.info("replication").get("master_link_status") == "up"
    except RedisError:
        return False
