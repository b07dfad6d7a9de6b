"""Real workers whose locks lie on a majority of three: a worker and a server are killed, and nothing runs twice.

The broker is an ordinary Redis. What runs waits at a gate while that is done.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from django_tasklock.celery import parked_messages
from django_tasklock.conf import QUORUM
from tests.support.celery_site.journal import Event, most_at_once
from tests.support.celery_site.site import Site
from tests.support.redis_server import RedisServer
from tests.testapp.models import Video

pytest_plugins = ["tests.support.celery_site.fixtures"]
pytestmark = [pytest.mark.slow, pytest.mark.redis]
SITE_TASKS = ["tests.support.celery_site.campaign_tasks", "tests.support.celery_site.once_tasks"]

PATIENCE = 120.0


@pytest.fixture
def servers() -> Iterator[list[RedisServer]]:
    """Where the locks are."""
    with ExitStack() as stack:
        yield [stack.enter_context(RedisServer()) for _ in range(3)]


def by_task(site: Site, event: str) -> dict[str, list[Event]]:
    """What was noted of each message."""
    found = defaultdict(list)
    for one in site.events(event):
        found[one.task_id].append(one)
    return found


def test_nothing_runs_twice_and_everything_ends(celery_site: Site, servers: list[RedisServer]) -> None:
    """Of each key two messages, the second parked behind the first. Half of the firsts or more lose their worker."""
    site = celery_site
    store = {"BACKEND": QUORUM, "LOCATION": [server.url for server in servers]}
    late = {"task_acks_late": True, "task_reject_on_worker_lost": True}
    site.configure(lease=15.0, tasklock={**store, "MESSAGE_LEASE": 6.0}, **late)
    workers = [site.worker(concurrency=4, prefetch=1) for _ in range(2)]
    gate = site.gate()
    videos = [Video.objects.create() for _ in range(2)]
    firsts = [
        site.publish("late_hold", "late", until=gate),
        site.publish("hardy_decorated", "hardy", until=gate),
        *(site.publish("guarded_queue", video.pk, until=gate) for video in videos),
    ]
    site.wait_until(lambda: len(by_task(site, "start")) == len(firsts), PATIENCE)
    seconds = [site.publish("late_hold", "late"), *(site.publish("guarded_queue", video.pk) for video in videos)]
    site.wait_until(lambda: len(list(parked_messages())) == len(seconds), PATIENCE)

    servers[0].kill()
    at_work = {
        worker: {one.task_id: one.key for one in site.events("start") if one.pid in worker.children()}
        for worker in workers
    }
    victim = max(workers, key=lambda worker: len(at_work[worker]))
    lost = at_work[victim]
    rows = {str(video.pk) for video in videos}

    def is_back(task_id: str) -> bool:
        """Tell whether it has started again, or found its video processed by the second message."""
        overtaken = lost[task_id] in rows & {one.key for one in site.events("end")}
        return overtaken or len(by_task(site, "start")[task_id]) == 2

    victim.kill()
    site.wait_until(lambda: all(map(is_back, lost)), PATIENCE)
    servers[0].start()
    gate.open()
    later = [site.publish("hardy_once", f"later {number}") for number in range(5)]
    everything = [*firsts, *seconds, *later]
    site.wait_until(lambda: all(site.result(one).ready() for one in everything), PATIENCE)

    assert {site.result(one).state for one in everything} == {"SUCCESS"}
    ended = Counter(one.task_id for one in site.events("end"))
    assert set(ended.values()) == {1}, "each once"
    assert ended.total() == len(everything) - len(videos), "a video that is ready is not processed again"
    assert Counter(one.key for one in site.events("end") if one.key in rows) == Counter(rows)
    for key in {one.key for one in site.events("start")}:
        assert most_at_once(one for one in site.events() if one.key in (key, "")) == 1, key
    site.wait_until(lambda: not list(parked_messages()), PATIENCE)
    for video in videos:
        video.refresh_from_db()
        assert video.status == "ready"
    assert site.waiting() == 0
