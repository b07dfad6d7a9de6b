"""What a Redis Cluster cannot promise: a replica is promoted that had not got the lock. The row judges.

The replica is stopped, and its connection closed, before the lock is granted: so nothing of it is on its way when the
primary dies.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from redis.exceptions import RedisError

from django_tasklock.types import Released
from tests.support.cluster import Node, clustered
from tests.support.cluster_acts import SLOT, key_of
from tests.support.guarded_campaign import settled
from tests.support.holes import claims, row_judges
from tests.support.stores import eventually
from tests.support.workers import Crew
from tests.testapp.models import Video

pytest_plugins = ["tests.support.redis_fixtures", "tests.support.worker_fixtures"]
pytestmark = [pytest.mark.redis, pytest.mark.database, pytest.mark.django_db(transaction=True), pytest.mark.slow]


def serves(node: Node) -> bool:
    """Whether it is a primary, in a cluster that is sound."""
    try:
        return bool(node.client.role()[0] == b"master") and node.sound()
    except RedisError:
        return False


def test_two_hold_the_lock_one_finishes_and_the_other_is_told(crew: Crew, tmp_path: Path, name: str) -> None:
    video = Video.objects.create()
    with clustered(tmp_path, replicas=1) as cluster:
        a, b = crew.hire_many(2, settled({"LOCATION": cluster.url, "ON_UNAVAILABLE": "raise"}))
        victim = cluster.serving(SLOT)
        replica = cluster.replicas[cluster.primaries.index(victim)]
        os.kill(replica.pid, signal.SIGSTOP)
        victim.client.execute_command("CLIENT", "KILL", "TYPE", "slave")
        claims(a, name, video)
        victim.kill()
        os.kill(replica.pid, signal.SIGCONT)
        eventually(lambda: serves(replica), 60)
        assert replica.client.get(key_of(name)) is None
        row_judges(a, b, name, video)
        assert b.do("lock.token").encode() in replica.client.get(key_of(name))
        assert b.do("lock.release()") is Released.RELEASED
