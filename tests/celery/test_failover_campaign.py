"""The lock store refuses writes, or fails over, again and again: every message ends, in order, and none runs twice.

``TASKLOCK_TEST_MESSAGES=1500``: how many there are in the long ones.
"""

from __future__ import annotations

import itertools
import os
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import redis

from django_tasklock.models import ParkedMessage
from tests.support.celery_site import queue_tasks
from tests.support.celery_site.journal import most_at_once
from tests.support.celery_site.site import Site
from tests.support.redis_server import free_port
from tests.support.sentinel import watched
from tests.testapp.models import Video

pytest_plugins = ["tests.support.celery_site.fixtures"]
SITE_TASKS = ["tests.support.celery_site.queue_tasks"]

MESSAGES = int(os.environ.get("TASKLOCK_TEST_MESSAGES", "1500"))
KEYS = 20
WORKERS = 2


class Campaign:
    """Messages of a few keys, each with a row of its own, while the store of their locks refuses now and then."""

    def __init__(self, site: Site, messages: int, keys: int) -> None:
        self.site = site
        videos = [Video.objects.create() for _ in range(messages)]
        self.lines = {video.pk: f"line-{number % keys}" for number, video in enumerate(videos)}
        self.sent: list[str] = []

    def run(self, fault: Callable[[], None], pause: float) -> int:
        """Publish all while ``fault`` comes after each ``pause``, and wait until all have ended. Return its number."""
        for _ in range(WORKERS):
            self.site.start(concurrency=2, prefetch=4)
        with repeatedly(fault, pause) as count:
            for pk, line in self.lines.items():
                self.sent.append(self.site.publish("storm", line, pk).id)
            self.site.wait_until(lambda: not self.undone(), 60 + 0.3 * len(self.sent))
        return count()

    def undone(self) -> list[str]:
        """The messages that have no result yet."""
        return [one for one in self.sent if not self.site.result(one).ready()]

    def check(self) -> None:
        """Each has run, once, after those before it of its key, and never beside another one of its key."""
        states = Counter(self.site.result(one).state for one in self.sent)
        assert states == {"SUCCESS": len(self.sent)}
        assert Counter(Video.objects.values_list("status", "progress")) == {("ready", 100): len(self.sent)}
        events = defaultdict(list)
        for event in self.site.events():
            events[event.more.get("line")].append(event)
        events.pop(None, None)
        for line, told in events.items():
            assert most_at_once(told) == 1, line
            ran = [int(one.key) for one in told if one.event == "start"]
            assert ran == [pk for pk, its in self.lines.items() if its == line]
        self.site.wait_until(lambda: not ParkedMessage.objects.exists())


@contextmanager
def repeatedly(act: Callable[[], None], pause: float) -> Iterator[Callable[[], int]]:
    """Run ``act`` after each ``pause`` of a block, which gets what tells how often it was."""
    over, done = threading.Event(), itertools.count()

    def run() -> None:
        while not over.wait(pause):
            act()
            next(done)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield lambda: next(done)
    finally:
        over.set()
        thread.join()


def refusing(client: redis.Redis, seconds: float) -> Callable[[], None]:
    """Return what makes a server a replica, which refuses writes, and a primary again."""
    nobody = free_port()

    def act() -> None:
        client.replicaof("127.0.0.1", nobody)
        time.sleep(seconds)
        client.replicaof("NO", "ONE")

    return act


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(queue_tasks.QUICK, "1")


@pytest.mark.slow
def test_a_store_that_refuses(celery_site: Site) -> None:
    celery_site.configure(lease=30)
    campaign = Campaign(celery_site, 120, 6)
    assert campaign.run(refusing(celery_site.locks, 2.0), 1.0) > 1
    campaign.check()


@pytest.mark.slow
@pytest.mark.long
def test_a_store_that_refuses_for_long(celery_site: Site) -> None:
    celery_site.configure(lease=30)
    campaign = Campaign(celery_site, MESSAGES, KEYS)
    assert campaign.run(refusing(celery_site.locks, 4.0), 6.0) > 1
    campaign.check()


@pytest.mark.slow
@pytest.mark.long
def test_failovers_by_sentinel(celery_site: Site, tmp_path: Path) -> None:
    with watched(tmp_path) as servers:
        celery_site.configure(lease=30, tasklock={"LOCATION": servers.url()})
        campaign = Campaign(celery_site, MESSAGES, KEYS)
        assert campaign.run(servers.fail_over, 10.0) > 0
        campaign.check()
