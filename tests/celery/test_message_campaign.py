"""Whole workers are killed again and again: every message runs to its end, and none of a living worker comes twice.

``TASKLOCK_TEST_KILLS=60``: how many are killed in the long one.
"""

from __future__ import annotations

import os
import random
import re
import time
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

import pytest
import redis

from tests.support.celery_site.journal import Event, most_at_once
from tests.support.celery_site.site import Site
from tests.support.celery_workers import Worker

pytest_plugins = ["tests.support.celery_site.fixtures"]
SITE_TASKS = ["tests.support.celery_site.campaign_tasks"]

LEASE = 6.0
KILLS = int(os.environ.get("TASKLOCK_TEST_KILLS", "4"))
"""The campaign itself, by hand and with nothing beside it: 60."""
SLOTS = 4
AT_ONCE = 4
"""Messages under way, those with a countdown included: whoever survives has a slot for each."""
TASKS = ("hold", "hardy_once", "hardy_decorated")
LATE: dict[str, Any] = {"task_acks_late": True, "task_reject_on_worker_lost": True}


class Campaign:
    """Two workers, of which one is killed as soon as the one that took the last one's place is at work."""

    def __init__(self, site: Site, longest: float) -> None:
        self.site = site
        self.longest = longest
        self.sent: dict[str, str] = {}
        self.dead: dict[str, float] = {}
        self.workers = [site.worker(concurrency=SLOTS, prefetch=2) for _ in range(2)]

    def run(self, kills: int) -> None:
        """Publish and kill; then let all end."""
        for number in range(kills):
            victim = self.workers.pop(0)
            rest = time.monotonic() + random.uniform(0.3, 0.9) * self.longest  # a long one is to have its chance
            self.site.wait_until(lambda victim=victim, rest=rest: self.busy(victim) and time.monotonic() > rest, 90)
            victim.kill()
            self.dead[victim.name] = self.site.events("killed")[-1].time
            self.workers.append(self.site.start(concurrency=SLOTS, prefetch=2))
            newest = self.workers[-1]
            self.site.wait_until(lambda newest=newest: self.works(newest), 60)
            print(f"{number + 1} killed, {len(self.sent)} published")
        self.site.wait_until(lambda: not self.undone(), 120)

    def busy(self, worker: Worker) -> bool:
        """Publish what there is room for; whether ``worker`` runs something."""
        while len(self.undone()) < AT_ONCE:
            self.publish()
        children = set(worker.children())
        return any(one.pid in children for one in self.running())

    def works(self, worker: Worker) -> bool:
        """The same while a worker starts; whether it takes messages."""
        return self.busy(worker) or "ready." in worker.log()

    def publish(self) -> None:
        """One message: a third of them of each kind, some short and some long, some for later."""
        number = len(self.sent)
        options = {"countdown": random.uniform(1, 2 * LEASE)} if number % 5 == 4 else {}
        seconds = min(self.longest, 0.1 * 10 ** random.uniform(0, 2.3))
        task = TASKS[number % len(TASKS)]
        self.sent[str(self.site.publish(task, f"{number}", seconds, options=options).id)] = task

    def running(self) -> list[Event]:
        """The starts of bodies that have not ended, nor been killed."""
        found: dict[tuple[int, str], Event] = {}
        for event in self.site.events():
            if event.event == "start":
                found[event.pid, event.task_id] = event
            elif event.event in ("end", "raised"):
                found.pop((event.pid, event.task_id), None)
            elif event.event == "killed":
                found = {key: one for key, one in found.items() if one.pid != event.pid}
        return list(found.values())

    def undone(self) -> list[str]:
        """What has not run to its end."""
        done = {one.task_id for one in self.site.events("end")}
        return [one for one in self.sent if one not in done]

    def delays(self) -> Iterator[float]:
        """Seconds from each kill to the next start of each body that was killed."""
        events = self.site.events()
        for place, event in enumerate(events):
            if event.event != "start":
                continue
            later = events[place + 1 :]
            mine = (one for one in later if one.pid == event.pid and one.task_id in ("", event.task_id))
            if (end := next(mine, None)) is not None and end.event == "killed":
                again = [one for one in later if one.event == "start" and one.task_id == event.task_id]
                yield (again[0].time if again else float("inf")) - end.time

    def delivered(self) -> dict[str, list[str]]:
        """The names of the workers that received each message, as often as they did."""
        found = defaultdict(list)
        for worker in self.site.workers:
            for task_id in re.findall(r"\[([0-9a-f-]{36})\] received", worker.log()):
                found[task_id].append(worker.name)
        return found

    def twice(self) -> dict[str, list[str]]:
        """Plain tasks' messages that two workers have had of which neither had been killed, or one worker twice.

        Ours may be put back into the broker from the database at once when their worker is dead; what the broker brings
        as well is discarded as a duplicate: ``alongside`` is for them.
        """
        found = {}
        for task_id, names in self.delivered().items():
            alive = [name for name in names if name not in self.dead]
            if self.sent[task_id] == "hold" and (len(alive) > 1 or len(set(names)) < len(names)):
                found[task_id] = names
        return found

    def alongside(self) -> list[str]:
        """Messages whose bodies ran twice at once."""
        events = defaultdict(list)
        for event in self.site.events():
            events[event.task_id].append(event)
        killed = events.pop("", [])
        ordered = {one: sorted(those + killed, key=lambda event: event.time) for one, those in events.items()}
        return [one for one, those in ordered.items() if most_at_once(those) > 1]

    def unheard(self) -> list[str]:
        """What kombu has lost: it takes a message off its list before it writes it down as not acknowledged."""
        heard = self.delivered()
        return [one for one in self.undone() if one not in heard]


@pytest.fixture
def site(celery_site: Site) -> Site:
    celery_site.configure(tasklock={"MESSAGE_LEASE": LEASE}, **LATE)
    return celery_site


def fight(site: Site, kills: int, longest: float) -> list[float]:
    """A campaign; returns the delays in order."""
    campaign = Campaign(site, longest)
    broker = redis.Redis.from_url(site.broker.url)
    try:
        campaign.run(kills)
    except AssertionError:
        lost = campaign.unheard()
        if lost != campaign.undone() or broker.hlen("unacked"):
            raise
        print(f"lost by kombu: {len(lost)} of {len(campaign.sent)}, in {kills} kills")
        assert len(lost) <= 1 + kills // 20
    delays = sorted(campaign.delays())
    print(f"{len(campaign.sent)} messages, {kills} kills, {len(delays)} bodies killed; started again after {delays}")
    assert campaign.twice() == {}
    assert campaign.alongside() == []
    site.wait_until(lambda: not broker.hlen("unacked"))
    assert delays
    assert site.waiting() == 0
    return delays


def test_a_short_one(site: Site) -> None:
    delays = fight(site, 2, longest=3.0)
    assert delays[-1] < LEASE + 15, "on a machine that is busy with other tests"


@pytest.mark.slow
@pytest.mark.long
def test_a_long_one(site: Site) -> None:
    delays = fight(site, KILLS, longest=20.0)
    if "TASKLOCK_TEST_KILLS" in os.environ:  # nothing beside it: how soon is then ours to say
        assert delays[max(0, int(len(delays) * 0.99) - 1)] < LEASE + 3
