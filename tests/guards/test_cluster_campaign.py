"""What a Redis Cluster promises, and what not, while its primaries are killed and stopped and its slots move.

Of a primary that fails the replica may lag: what was granted last is lost with it, and two hold the lock. That is
counted here, and where no primary fails there is none of it. No stale write of a guarded row is accepted in any case.
"""

from __future__ import annotations

import os
import random
import signal
import time
from pathlib import Path

import pytest
from redis.exceptions import RedisError

from tests.support.cluster import Cluster, Node, clustered
from tests.support.cluster_acts import SLOT, away
from tests.support.guarded_campaign import WORK, outcome_of, settled
from tests.support.stores import eventually
from tests.support.workers import Crew
from tests.testapp.models import Video

pytest_plugins = ["tests.support.redis_fixtures", "tests.support.worker_fixtures"]
pytestmark = [pytest.mark.redis, pytest.mark.database, pytest.mark.django_db(transaction=True), pytest.mark.slow]

SECONDS = float(os.environ.get("TASKLOCK_TEST_CLUSTER", "6"))
ROWS = 6


def moves(cluster: Cluster, ends: float) -> int:
    """Move the slot of the locks, sometimes halfway for a while."""
    number = 0
    while time.monotonic() < ends:
        target = away(cluster)
        source = cluster.begin_move(SLOT, target)
        cluster.move_keys(SLOT, source, target, random.choice([1, 3, 100]))
        time.sleep(random.choice([0.0, 0.05, 0.4]))
        while cluster.move_keys(SLOT, source, target):
            pass
        cluster.end_move(SLOT, target)
        number += 1
        time.sleep(random.uniform(0.0, 0.2))
    return number


def stops(cluster: Cluster, ends: float) -> int:
    """Stop the primary of the locks for a moment that is too short for it to be replaced."""
    number = 0
    while time.monotonic() < ends:
        node = cluster.serving(SLOT)
        os.kill(node.pid, signal.SIGSTOP)
        time.sleep(random.uniform(0.05, 0.5))
        os.kill(node.pid, signal.SIGCONT)
        number += 1
        time.sleep(random.uniform(0.2, 0.5))
    return number


def failures(cluster: Cluster, ends: float, lag: bool, how: signal.Signals) -> int:
    """Fail the primary of the locks again and again, its replica up to date, or lagging by a second."""
    number = 0
    node = cluster.serving(SLOT)
    replica = cluster.replicas[cluster.primaries.index(node)]
    while time.monotonic() < ends:
        if lag:
            os.kill(replica.pid, signal.SIGSTOP)
            node.client.execute_command("CLIENT", "KILL", "TYPE", "slave")
            time.sleep(0.8)
        if how is signal.SIGKILL:
            node.kill()
        else:
            os.kill(node.pid, how)
        if lag:
            os.kill(replica.pid, signal.SIGCONT)
        eventually(lambda replica=replica: is_primary(replica), 30)
        number += 1
        if how is signal.SIGSTOP:
            time.sleep(0.5)
            os.kill(node.pid, signal.SIGCONT)  # it believes that it is the primary, until it hears of the other
        else:
            node.start()
        eventually(lambda node=node: is_replica(node), 30)
        node, replica = replica, node
    return number


def is_primary(node: Node) -> bool:
    """Whether it serves slots now."""
    try:
        return bool(node.client.role()[0] == b"master")
    except RedisError:
        return False


def is_replica(node: Node) -> bool:
    """Whether it follows another, and has all that this one has."""
    try:
        return node.client.info("replication").get("master_link_status") == "up"
    except RedisError:
        return False


@pytest.mark.parametrize(
    ("what", "promised"),
    [("moves", True), ("stops", True), ("kills", False), ("lagging kills", False), ("lagging stops", False)],
)
def test_a_campaign(crew: Crew, tmp_path: Path, name: str, what: str, promised: bool) -> None:
    until = tmp_path / "until"
    rows = [Video.objects.create().pk for _ in range(ROWS)]
    names = [f"{name}:{number}" for number in range(ROWS)]
    with clustered(tmp_path, replicas=0 if promised else 1) as cluster:
        workers = crew.hire_many(4, settled({"LOCATION": cluster.url, "ON_UNAVAILABLE": "raise"}))
        for worker in workers:
            worker.do(WORK)
            worker.start(f"work({names!r}, {rows!r}, {str(until)!r}, {1.0 if promised else 5.0})")
        time.sleep(1)
        ends = time.monotonic() + SECONDS
        if what == "moves":
            number = moves(cluster, ends)
        elif what == "stops":
            number = stops(cluster, ends)
        else:
            how = signal.SIGKILL if "kills" in what else signal.SIGSTOP
            number = failures(cluster, ends, "lagging" in what, how)
        time.sleep(1)
        until.touch()
        seen = outcome_of(workers)
    print(
        f"\n{what}: {number}; holds {len(seen.holds)}, overlaps {len(seen.overlaps)}, claims refused or overtaken"
        f" {seen.refused}, stale writes {seen.stale}, unavailable {seen.away}"
    )
    assert len(seen.holds) > 4
    assert seen.stale == 0
    if promised:
        assert seen.overlaps == []
