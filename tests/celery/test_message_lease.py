"""The lease of a message: a living worker's are delivered once, a dead one's start again within the lease.

Time is counted in renewals that a worker has noted in the broker, so a slow machine waits for longer.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import redis

from django_tasklock.celery.messages import marks
from tests.support.celery_site.site import Site
from tests.support.celery_workers import Worker

pytest_plugins = ["tests.support.celery_site.fixtures"]

SITE_TASKS = ["tests.support.celery_site.once_tasks"]
LEASE = 4.0
LATE: dict[str, Any] = {"task_acks_late": True, "task_reject_on_worker_lost": True}
SLACK = 6.0
"""Seconds that a start may take beside the lease on a machine that is busy with other tests."""


@pytest.fixture
def site(celery_site: Site) -> Site:
    """One whose workers renew; what is not acknowledged early comes back if they die."""
    celery_site.configure(tasklock={"MESSAGE_LEASE": LEASE}, **LATE)
    return celery_site


@pytest.fixture
def broker(site: Site) -> redis.Redis:
    """A client of the broker."""
    return redis.Redis.from_url(site.broker.url, decode_responses=True)


def mark_of(site: Site, worker: Worker) -> marks.Mark | None:
    return next((mark for mark in marks.read_marks(site.app) if mark.node == worker.name), None)


def renewed(site: Site, worker: Worker, times: float) -> None:
    """Until ``worker`` has renewed what it has for ``times`` leases more."""
    seen = [0.0]

    def often() -> bool:
        mark = mark_of(site, worker)
        if mark is not None and mark.at >= seen[-1] + LEASE / 4:
            seen.append(mark.at)
        return len(seen) > 1 + 4 * times

    site.wait_until(often, 60 + 10 * times * LEASE)


def have(site: Site, worker: Worker, messages: int) -> None:
    """Until ``worker`` renews so many messages."""

    def so_many() -> bool:
        mark = mark_of(site, worker)
        return mark is not None and mark.messages == messages

    site.wait_until(so_many)


def holder(start: Any, *workers: Worker) -> tuple[Worker, Worker]:
    """The worker whose child has noted ``start``, and the other one."""
    first, second = workers
    return (first, second) if start.pid in first.children() else (second, first)


def settled(site: Site, broker: redis.Redis) -> None:
    """Until nothing is waiting nor unacknowledged."""
    site.wait_until(lambda: not broker.hlen("unacked") and not broker.zcard("unacked_index") and not site.waiting())


@pytest.mark.quick
def test_it_is_delivered_once_while_its_worker_lives_and_again_when_that_is_dead(
    site: Site, broker: redis.Redis
) -> None:
    """Running, fetched ahead, and with a countdown."""
    gate = site.gate()
    first = site.worker(prefetch=4)
    for key in ("runs", "ahead", "further ahead"):
        site.publish("hold", key, until=gate)
    site.publish("hold", "later", until=gate, options={"countdown": 3600})
    site.started("runs")
    have(site, first, 4)
    second = site.worker(concurrency=4)
    renewed(site, first, 1.25)
    assert [one.key for one in site.events("start")] == ["runs"]
    assert site.waiting() == 0
    first.kill()
    died = site.events("killed")[-1].time
    starts = [site.started(key, number) for key, number in (("runs", 2), ("ahead", 1), ("further ahead", 1))]
    assert {one.pid for one in starts} <= set(second.children())
    assert max(one.time for one in starts) - died < LEASE + SLACK
    have(site, second, 4)
    gate.open()
    have(site, second, 1)
    assert broker.hlen("unacked") == 1, "the one with the countdown"


@pytest.mark.parametrize("pool", ["threads", "solo", "gevent"])
def test_every_pool(site: Site, broker: redis.Redis, pool: str) -> None:
    """Also where the task keeps the main thread to itself."""
    gate = site.gate()
    first = site.worker(pool=pool)
    site.publish("hold", "long", until=gate)
    site.started("long")
    second = site.worker()
    renewed(site, first, 3)
    assert len(site.events("start")) == 1
    first.kill()
    assert site.started("long", 2).pid in second.children()
    gate.open()
    settled(site, broker)


def test_a_warm_shutdown_renews_to_the_end(site: Site, broker: redis.Redis) -> None:
    gate = site.gate()
    first = site.worker()
    site.publish("hold", "long", until=gate)
    site.started("long")
    site.accepted(first)
    second = site.worker()
    first.terminate()
    renewed(site, first, 2)
    gate.open()
    first.ended()
    settled(site, broker)
    assert [one.event for one in site.events(key="long")] == ["start", "end"]
    assert [mark.node for mark in marks.read_marks(site.app)] == [second.name]


class TestTheBroker:
    """Its connections are cut, it is restarted, with and without what it had."""

    @pytest.fixture
    def long(self, site: Site) -> Callable[[], None]:
        """A task that runs in one of two workers: what is called at last lets it end, which it must do once."""
        self.gate = site.gate()
        self.workers = [site.worker(), site.worker()]
        site.publish("hold", "long", until=self.gate)
        self.mine, self.other = holder(site.started("long"), *self.workers)
        site.accepted(self.mine)

        def ends() -> None:
            for worker in self.workers:
                renewed(site, worker, 2)
            assert [one.event for one in site.events(key="long")] == ["start"]
            self.gate.open()
            settled(site, redis.Redis.from_url(site.broker.url))
            assert [one.event for one in site.events(key="long")] == ["start", "end"]

        return ends

    def reconnected(self, site: Site) -> None:
        for worker in self.workers:
            site.wait_until(lambda worker=worker: worker.log().count("Connected to redis") > 1)

    def test_connections_are_cut(self, site: Site, broker: redis.Redis, long: Callable[[], None]) -> None:
        """Celery puts back what such a worker has, and goes on with it."""
        broker.client_kill_filter(_type="normal", skipme=True)
        broker.client_kill_filter(_type="pubsub", skipme=True)
        self.reconnected(site)
        long()

    def test_a_restart_that_loses_everything(self, site: Site, long: Callable[[], None]) -> None:
        """What runs is written down again: its worker may yet die."""
        site.broker.kill()
        site.broker.start()
        self.reconnected(site)
        renewed(site, self.other, 1.5)  # it looks again for what is abandoned
        have(site, self.mine, 1)
        self.mine.kill()
        assert site.started("long", 2).pid in self.other.children()
        self.gate.open()
        settled(site, redis.Redis.from_url(site.broker.url))

    def test_away_for_longer_than_a_lease(self, site: Site, tmp_path: Path, request: pytest.FixtureRequest) -> None:
        """Nobody could renew: nobody judges before each has had the time to."""
        site.broker.stop()
        site.broker.options = ("--appendonly", "yes", "--appendfsync", "always", "--dir", str(tmp_path))
        site.broker.start()
        long = request.getfixturevalue("long")
        fell_behind = "their leases cannot be renewed"
        site.broker.kill()
        for worker in self.workers:
            site.wait_until(lambda worker=worker: fell_behind in worker.log())
        tries = [worker.log().count("Trying again in") for worker in self.workers]
        site.wait_until(  # kombu waits for 2, 4, 6 seconds
            lambda: all(
                worker.log().count("Trying again in") > before + 1
                for worker, before in zip(self.workers, tries, strict=True)
            )
        )
        os.kill(self.mine.pid, signal.SIGSTOP)
        site.broker.start()
        renewed(site, self.other, 0.5)
        assert site.waiting() == 0, "it has put back what the one that is late could not renew yet"
        os.kill(self.mine.pid, signal.SIGCONT)
        self.reconnected(site)
        long()


class TestStopped:
    """The main process does not run for a while; its children go on."""

    @pytest.fixture
    def stopped(self, site: Site) -> Callable[[str, float], None]:
        """Lets the main process of the worker that runs the task stop for some leases of the other worker."""

        def stop(task: str, leases: float) -> None:
            self.gate = site.gate()
            workers = site.worker(), site.worker()
            site.publish(task, "long", until=self.gate)
            self.mine, self.other = holder(site.started("long"), *workers)
            site.accepted(self.mine)
            renewed(site, self.mine, 0.25)
            os.kill(self.mine.pid, signal.SIGSTOP)
            renewed(site, self.other, leases)

        return stop

    def wake(self, site: Site) -> None:
        os.kill(self.mine.pid, signal.SIGCONT)
        renewed(site, self.mine, 1)

    def test_for_twice_the_lease_a_plain_task_runs_twice(
        self, site: Site, broker: redis.Redis, stopped: Callable[[str, float], None]
    ) -> None:
        """Nobody can tell it from a dead one. It says so when it wakes up, and the message is gone at last."""
        stopped("hold", 2)
        assert site.started("long", 2).pid in self.other.children()
        self.wake(site)
        assert "s late: it was over" in self.mine.log()
        self.gate.open()
        settled(site, broker)
        assert [one.event for one in site.events(key="long")] == ["start", "start", "end", "end"]

    def test_for_twice_the_lease_a_locked_one_runs_once(
        self, site: Site, broker: redis.Redis, stopped: Callable[[str, float], None]
    ) -> None:
        """The lock is that of the child that runs on: the second delivery meets it."""
        stopped("late_hold", 2)
        site.wait_until(lambda: "late_hold" in self.other.log().partition("ready.")[2])
        self.wake(site)
        assert len(site.events("start")) == 1
        self.gate.open()
        site.wait_until(lambda: site.events("end"))  # of the message its second delivery may have been the end already
        settled(site, broker)
        assert [one.event for one in site.events(key="long")] == ["start", "end"]


def test_workers_of_one_name_keep_each_a_mark(site: Site, broker: redis.Redis) -> None:
    gate = site.gate()
    first = site.worker()
    site.publish("hold", "long", until=gate)
    site.started("long")
    twin = site.worker(arguments=("-n", first.name))
    site.wait_until(
        lambda: sorted(mark.messages for mark in marks.read_marks(site.app) if mark.node == first.name) == [0, 1]
    )
    twin.terminate()
    twin.ended()
    renewed(site, first, 2)  # its mark is not the other's to remove, nor is its message
    gate.open()
    settled(site, broker)
    assert [one.event for one in site.events(key="long")] == ["start", "end"]


class TestWhoDoesNotRenew:
    def test_is_named(self, site: Site) -> None:
        old = site.worker(tasklock={"MESSAGE_LEASE": None})
        new = site.worker()
        site.wait_until(lambda: mark_of(site, new))
        found = marks.read_marks(site.app)
        assert [mark.node for mark in found] == [new.name]
        assert marks.without_mark(site.app, found) == [old.name]

    def test_a_projects_own_timeout_is_the_lease(self, site: Site) -> None:
        site.configure(broker_transport_options={"visibility_timeout": 30})
        worker = site.worker()
        site.wait_until(lambda: mark_of(site, worker))
        assert mark_of(site, worker).lease == 30


class TestRights:
    """A broker's user without a right to what only informs: it is named once, and the messages are renewed."""

    def limited(self, broker: redis.Redis, *rights: str) -> str:
        """The address for a new user with all rights but these."""
        broker.execute_command("ACL", "SETUSER", "site", "on", ">secret", "+@all", "~*", "&*", *rights)
        address = broker.connection_pool.connection_kwargs
        return f"redis://site:secret@{address['host']}:{address['port']}/0"

    def test_time_and_info(self, site: Site, broker: redis.Redis) -> None:
        gate = site.gate()
        # kombu from 5.7 on needs TIME itself, for remote control alone.
        limited = site.worker(broker_url=self.limited(broker, "-time", "-info"), worker_enable_remote_control=False)
        site.publish("hold", "long", until=gate)
        site.started("long")
        other = site.worker()
        renewed(site, limited, 2)
        renewed(site, other, 0.5)
        assert len(site.events("start")) == 1, "the other one has put it back"
        broker.client_kill_filter(_type="normal", skipme=True)  # the next connection is told the same
        renewed(site, limited, 1)
        gate.open()
        settled(site, broker)
        assert [one.event for one in site.events(key="long")] == ["start", "end"]
        for command in ("time", "info"):
            assert limited.log().count(f"run: ACL SETUSER site +{command}\n") == 1
            assert limited.log().count(f"the broker refuses {command.upper()} to the user 'site'") == 1


@pytest.mark.broker
def test_rabbitmq_needs_none(celery_site: Site) -> None:
    """There a dead worker's message comes back at once; so it does here, after the lease."""
    celery_site.configure(tasklock={"MESSAGE_LEASE": LEASE}, **LATE)
    gate = celery_site.gate()
    first = celery_site.worker()
    celery_site.publish("hold", "long", until=gate)
    celery_site.started("long")
    second = celery_site.worker()
    first.kill()
    died = celery_site.events("killed")[-1].time
    again = celery_site.started("long", 2)
    assert again.pid in second.children()
    assert again.time - died < SLACK + (0 if celery_site.is_amqp else LEASE)
    if celery_site.is_amqp:
        assert marks.read_marks(celery_site.app) == []
    gate.open()
    celery_site.wait_until(lambda: celery_site.events("end"))
