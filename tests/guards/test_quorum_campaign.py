"""What a majority of instances promises while they are killed, stopped and cut off, and come back empty.

No two hold a lock while a lease is intact, and a guarded row accepts no stale write, also of a minority's ghost.
"""

from __future__ import annotations

import os
import random
import time
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.support import quorum
from tests.support.guarded_campaign import WORK, outcome_of, settled
from tests.support.proxy import Proxy
from tests.support.quorum_harm import harm
from tests.support.redis_server import RedisServer
from tests.support.stores import eventually
from tests.support.workers import Crew
from tests.testapp.models import Video

pytest_plugins = ["tests.support.redis_fixtures", "tests.support.worker_fixtures"]
pytestmark = [pytest.mark.redis, pytest.mark.database, pytest.mark.django_db(transaction=True), pytest.mark.slow]

SECONDS = float(os.environ.get("TASKLOCK_TEST_QUORUM", "6"))
ROWS = 4
LEASE = 2  # seconds


@pytest.mark.parametrize("number", [3, 5])
def test_a_campaign(crew: Crew, tmp_path: Path, name: str, number: int) -> None:
    until = tmp_path / "until"
    rows = [Video.objects.create().pk for _ in range(ROWS)]
    names = [f"{name}:{one}" for one in range(ROWS)]
    with ExitStack() as stack:
        servers = [stack.enter_context(RedisServer()) for _ in range(number)]
        proxies = [stack.enter_context(Proxy(server.url)) for server in servers]
        tasklock = {
            "BACKEND": "django_tasklock.backends.quorum.QuorumBackend",
            "LOCATION": [proxy.url for proxy in proxies],
            "ON_UNAVAILABLE": "raise",
            "LEASE": LEASE,
            "TIMEOUT": 60,
        }
        workers = crew.hire_many(4, settled(tasklock))
        for worker in workers:
            worker.do(WORK)
            worker.start(f"work({names!r}, {rows!r}, {str(until)!r}, 3.0, lease={LEASE})")
        time.sleep(1)
        ends, harmed = time.monotonic() + SECONDS, 0
        while time.monotonic() < ends:
            harm(servers, proxies, random.choice([1, 1, number // 2 + 1]), LEASE)
            harmed += 1
        time.sleep(1)
        until.touch()
        seen = outcome_of(workers)
    print(
        f"\n{number} instances, harmed {harmed} times; holds {len(seen.holds)}, overlaps {len(seen.overlaps)}, claims"
        f" refused or overtaken {seen.refused}, stale writes {seen.stale}, unavailable {seen.away}"
    )
    assert len(seen.holds) > 10
    assert seen.stale == 0
    assert seen.overlaps == []


def test_a_hold_outlives_all_instances_killed_one_after_the_other(crew: Crew, tmp_path: Path, name: str) -> None:
    """Nobody else asks for anything: the heartbeat alone notices who came back empty, and gives the lock back."""
    with ExitStack() as stack:
        servers = [stack.enter_context(RedisServer()) for _ in range(3)]
        tasklock = {
            "BACKEND": "django_tasklock.backends.quorum.QuorumBackend",
            "LOCATION": [server.url for server in servers],
            "ON_UNAVAILABLE": "raise",
            "LEASE": 5,
        }
        [worker] = crew.hire_many(1, settled(tasklock))
        worker.do(f"lock = TaskLock({name!r}, timeout=600)\nassert lock.acquire()")
        token = worker.do("lock.token").encode()
        urls = [server.url for server in servers]
        for server in servers:
            server.kill()
            server.start()
            eventually(lambda: all(token in (value or b"") for value in quorum.values_of(name, urls)), 60)
        worker.do("lock.ensure_held()")
        assert worker.do("bool(lock.release())") is True
        assert quorum.values_of(name, urls).count(None) >= 2
