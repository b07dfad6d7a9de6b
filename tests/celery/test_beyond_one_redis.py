"""Real workers whose locks lie on a majority of three, or in a Redis Cluster: a worker and a server are killed.

The broker is an ordinary Redis. What runs waits at a gate while that is done, so nobody asks for a lock in the moment
in which a part of a Cluster has no primary: ``ON_UNAVAILABLE`` is not what is looked at here.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from django_tasklock.celery import parked_messages
from django_tasklock.conf import QUORUM
from tests.support.celery_site.journal import Event, most_at_once
from tests.support.celery_site.site import Site
from tests.support.celery_workers import until
from tests.support.cluster import Node, clustered
from tests.support.cluster_acts import SLOT
from tests.support.redis_server import RedisServer
from tests.testapp.models import Video

pytest_plugins = ["tests.support.celery_site.fixtures"]
pytestmark = [pytest.mark.slow, pytest.mark.redis]
SITE_TASKS = ["tests.support.celery_site.campaign_tasks", "tests.support.celery_site.once_tasks"]

LOCK_LEASE = 15.0
"""Seconds: longer than it takes a Cluster to replace a primary, on a machine that stalls."""
MESSAGE_LEASE = 6.0
PATIENCE = 120.0


class Store:
    """Several servers: one of them dies, and comes back empty."""

    def __init__(
        self, tasklock: dict[str, Any], kill: Callable[[], None], restart: Callable[[], None], keeps_order: bool
    ) -> None:
        self.tasklock = tasklock
        self.keeps_order = keeps_order
        """Whether a message that lost its worker comes before those that were published later."""
        self.kill = kill
        """Kill one of them; return when the others serve what it served."""
        self.restart = restart


def a_majority(stack: ExitStack, folder: Path) -> Store:
    """Three instances, the first of which dies."""
    servers = [RedisServer().start() for _ in range(3)]
    for server in servers:
        stack.callback(server.kill)
    location = [server.url for server in servers]
    tasklock = {"BACKEND": QUORUM, "LOCATION": location}
    return Store(tasklock, servers[0].kill, lambda: servers[0].start() and None, keeps_order=False)


def a_cluster(stack: ExitStack, folder: Path) -> Store:
    """Three primaries with a replica each; the one with the locks dies, when its replica has all."""
    cluster = stack.enter_context(clustered(folder / "cluster", replicas=1))
    victim = cluster.serving(SLOT)

    def kill() -> None:
        assert victim.client.execute_command("WAIT", 1, 30_000) == 1
        victim.kill()
        others = [node for node in cluster.nodes if node is not victim]
        until(lambda: all(is_replaced(node) for node in others), PATIENCE, lambda: "the others have taken over")

    def is_replaced(node: Node) -> bool:
        return node.sound() and victim.port not in {port for _, _, port in node.slots()}

    return Store({"LOCATION": cluster.url}, kill, lambda: victim.start() and None, keeps_order=True)


@pytest.fixture(params=[a_majority, a_cluster])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    """Where the locks are."""
    (tmp_path / "cluster").mkdir()
    with ExitStack() as stack:
        yield request.param(stack, tmp_path)


def by_task(site: Site, event: str) -> dict[str, list[Event]]:
    """What was noted of each message."""
    found = defaultdict(list)
    for one in site.events(event):
        found[one.task_id].append(one)
    return found


def test_nothing_runs_twice_and_everything_ends(celery_site: Site, store: Store) -> None:
    """Of each key two messages: the second is parked behind the first. Half of the firsts lose their worker."""
    site = celery_site
    site.configure(
        lease=LOCK_LEASE,
        tasklock={**store.tasklock, "MESSAGE_LEASE": MESSAGE_LEASE},
        task_acks_late=True,
        task_reject_on_worker_lost=True,
    )
    workers = [site.worker(concurrency=4, prefetch=1) for _ in range(2)]
    gate = site.gate()
    videos = [Video.objects.create() for _ in range(2)]
    firsts = [
        site.publish("late_hold", "late", until=gate),
        site.publish("hardy_decorated", "hardy", until=gate),
        *(site.publish("guarded_queue", video.pk, until=gate) for video in videos),
    ]
    children = [set(worker.children()) for worker in workers]
    site.wait_until(lambda: len(by_task(site, "start")) == len(firsts), PATIENCE)
    assert all(any(one.pid in those for one in site.events("start")) for those in children), "both are at work"
    seconds = [site.publish("late_hold", "late"), *(site.publish("guarded_queue", video.pk) for video in videos)]
    site.wait_until(lambda: len(list(parked_messages())) == len(seconds), PATIENCE)

    store.kill()
    victim = workers[0]
    lost = {one.task_id: one.key for one in site.events("start") if one.pid in victim.children()}
    rows = {str(video.pk) for video in videos}

    def is_back(task_id: str) -> bool:
        """Tell whether it has started again, or found its video processed by the second message."""
        overtaken = not store.keeps_order and lost[task_id] in rows & {one.key for one in site.events("end")}
        return overtaken or len(by_task(site, "start")[task_id]) == 2

    victim.kill()
    site.wait_until(lambda: all(map(is_back, lost)), PATIENCE)
    store.restart()
    gate.open()
    later = [site.publish("hardy_once", f"later {number}") for number in range(5)]
    everything = [*firsts, *seconds, *later]
    site.wait_until(lambda: all(site.result(one).ready() for one in everything), PATIENCE)

    assert {site.result(one).state for one in everything} == {"SUCCESS"}
    run = [str(one.id) for one in (*firsts, seconds[0], *later)]  # a video that is ready is not processed again
    ended = Counter(one.task_id for one in site.events("end"))
    if store.keeps_order:
        assert ended == Counter(run), "each once"
    else:
        assert set(ended.values()) == {1}, "each once"
        assert ended.total() == len(run)
        assert Counter(one.key for one in site.events("end") if one.key in rows) == Counter(rows)
    for key in {one.key for one in site.events("start")}:
        assert most_at_once(one for one in site.events() if one.key in (key, "")) == 1, key
    site.wait_until(lambda: not list(parked_messages()), PATIENCE)
    for video in videos:
        video.refresh_from_db()
        assert video.status == "ready"
    assert site.waiting() == 0
