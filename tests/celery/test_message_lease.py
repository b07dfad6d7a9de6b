"""The lease of a message: a living worker's are delivered once, and those of a dead one, or behind slots that hang, run
elsewhere within the lease.

Time is counted in renewals that a worker has noted in the broker, so a slow machine waits for longer.
"""

from __future__ import annotations

import json
import math
import os
import signal
from collections.abc import Callable
from io import StringIO
from pathlib import Path
from typing import Any, ClassVar

import pytest
import redis
from celery.app.task import Context
from django.core.management import call_command

from django_tasklock import TaskLock, task_lock
from django_tasklock.celery import parked_messages
from django_tasklock.celery.messages import marks
from django_tasklock.celery.messages.outlived import Outlived
from django_tasklock.host import Task
from django_tasklock.operations import sweep
from django_tasklock.operations.state import count_messages, count_stuck
from django_tasklock.types import monotonic
from tests.support.celery_site.site import Site
from tests.support.celery_workers import Worker
from tests.support.guards import GUARD
from tests.support.once_app import OnceApp
from tests.support.processes import processes
from tests.testapp.models import Video

pytest_plugins = ["tests.support.celery_site.fixtures", "tests.support.once_fixtures"]

SITE_TASKS = ["tests.support.celery_site.once_tasks"]
LEASE = 4.0
LATE: dict[str, Any] = {"task_acks_late": True, "task_reject_on_worker_lost": True}
SLACK = 15.0
"""Seconds that a start may take beside the lease on a machine that is busy with other tests."""
PATIENCE = 90.0
"""Seconds within which all else happens there."""
LONG_ENOUGH = 1.5
"""Leases after which a message that is not renewed has been given to another worker."""


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


def renewed(site: Site, *workers: Worker, times: float = LONG_ENOUGH) -> None:
    """Until each of ``workers`` has renewed what it has for ``times`` leases more."""
    seen = {worker.name: [0.0] for worker in workers}

    def often() -> bool:
        for mark in marks.read_marks(site.app):
            if mark.node in seen and mark.at >= seen[mark.node][-1] + LEASE / 4:
                seen[mark.node].append(mark.at)
        return all(len(each) > 1 + 4 * times for each in seen.values())

    site.wait_until(often, 60 + 10 * times * LEASE)


def have(site: Site, worker: Worker, messages: int, stuck: int | None = None) -> None:
    """Until ``worker`` renews so many messages, and says that so many slots hang."""

    def so_many() -> bool:
        mark = mark_of(site, worker)
        return mark is not None and mark.messages == messages and stuck in (None, mark.stuck)

    site.wait_until(so_many, PATIENCE)


def holder(start: Any, *workers: Worker) -> tuple[Worker, Worker]:
    """The worker whose child has noted ``start``, and the other one."""
    first, second = workers
    return (first, second) if start.pid in first.children() else (second, first)


def settled(site: Site) -> None:
    """Until nothing is waiting nor unacknowledged."""
    with redis.Redis.from_url(site.broker.url) as broker:
        site.wait_until(
            lambda: not broker.hlen("unacked") and not broker.zcard("unacked_index") and not site.waiting(), PATIENCE
        )


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
    renewed(site, first, times=1.25)
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


def test_every_pool(site: Site) -> None:
    """Also where the task keeps the main thread to itself."""
    gate = site.gate()
    pools = ("threads", "solo", "gevent")
    workers = [site.start(pool=pool, queues=(pool,)) for pool in pools]
    for pool in pools:
        site.publish("hold", pool, until=gate, options={"queue": site.queue(pool)})
    for pool in pools:
        site.started(pool, seconds=PATIENCE)
    last = site.worker(concurrency=3, queues=pools)
    renewed(site, *workers)
    assert len(site.events("start")) == 3
    for worker in workers:
        worker.kill()
    assert {site.started(pool, 2).pid for pool in pools} <= set(last.children())
    gate.open()
    settled(site)


def test_a_warm_shutdown_renews_to_the_end(site: Site) -> None:
    """Although another worker of the same name has ended before: each has a mark of its own."""
    gate = site.gate()
    first = site.worker()
    site.publish("hold", "long", until=gate)
    site.started("long")
    site.accepted(first)
    twin = site.worker(arguments=("-n", first.name))
    site.wait_until(
        lambda: sorted(mark.messages for mark in marks.read_marks(site.app) if mark.node == first.name) == [0, 1]
    )
    twin.terminate()
    twin.ended()
    second = site.worker()
    first.terminate()
    renewed(site, first)
    assert [one.event for one in site.events(key="long")] == ["start"]
    gate.open()
    first.ended()
    settled(site)
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
            renewed(site, *self.workers)
            assert [one.event for one in site.events(key="long")] == ["start"]
            self.gate.open()
            settled(site)
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
        renewed(site, self.other)  # it looks again for what is abandoned
        have(site, self.mine, 1)
        self.mine.kill()
        assert site.started("long", 2).pid in self.other.children()
        self.gate.open()
        settled(site)

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
        renewed(site, self.other, times=0.5)
        assert site.waiting() == 0, "it has put back what the one that is late could not renew yet"
        os.kill(self.mine.pid, signal.SIGCONT)
        self.reconnected(site)
        long()


def test_a_main_process_that_is_stopped_for_twice_the_lease(site: Site) -> None:
    """Its children go on, and nobody can tell it from a dead one: a plain task runs twice, a locked one once."""
    gate = site.gate()
    mine = site.worker(concurrency=2)
    site.publish("hold", "plain", until=gate)
    site.publish("late_hold", "locked", until=gate)
    for key in ("plain", "locked"):
        site.started(key)
    site.accepted(mine, 2)
    other = site.worker(concurrency=2)
    renewed(site, mine, times=0.25)
    os.kill(mine.pid, signal.SIGSTOP)
    renewed(site, other, times=2)
    assert site.started("plain", 2).pid in other.children()
    site.wait_until(lambda: "late_hold" in other.log().partition("ready.")[2])  # it meets the lock of the child
    os.kill(mine.pid, signal.SIGCONT)
    renewed(site, mine, times=1)
    assert "s late: it was over" in mine.log()
    gate.open()
    site.wait_until(lambda: len(site.events("end")) == 3)  # a second delivery may be the message's end already
    settled(site)
    assert [one.event for one in site.events(key="plain")] == ["start", "start", "end", "end"]
    assert [one.event for one in site.events(key="locked")] == ["start", "end"]


class TestBesideWorkersThatDoNotRenew:
    """As in the first deploy, beside workers without this app: what they have is left to them and to Celery."""

    OLD: ClassVar[dict[str, Any]] = {"tasklock": {"MESSAGE_LEASE": None}}

    @pytest.mark.quick
    def test_each_keeps_what_it_has_and_the_dead_give_theirs_back(self, site: Site, broker: redis.Redis) -> None:
        """Whatever visibility timeouts they have; what is killed before it has renewed anything has its lease, too."""
        gate = site.gate()
        site.worker(prefetch=2, visibility_timeout=7200, **self.OLD)
        site.publish("hold", "old later", options={"countdown": 3600})
        for key in ("old", "old ahead"):
            site.publish("hold", key, until=gate)
        site.wait_until(lambda: broker.hlen("unacked") == 3)
        # Its own renewals are three seconds apart.
        killed = site.worker(visibility_timeout=120, tasklock={"MESSAGE_LEASE": 3600})
        site.publish("hold", "new", until=gate)
        site.started("new")
        killed.kill()
        last = site.worker(concurrency=3)
        site.started("new", 2, LEASE + SLACK)
        renewed(site, last)
        assert [one.key for one in site.events("start")] == ["old", "new", "new"]
        assert broker.hlen("unacked") == 4
        assert sweep(pause=0).counts["lapsed"].found == 0
        gate.open()
        site.started("old ahead")

    @pytest.mark.slow
    @pytest.mark.long
    def test_a_rolling_deploy_runs_nothing_twice(self, site: Site) -> None:
        """Bodies that take longer than a lease, short ones and countdowns; new workers come, old ones end warm."""
        workers = [site.worker(concurrency=3, prefetch=2, **self.OLD) for _ in range(2)]
        sent: list[str] = []

        def publish() -> None:
            number = len(sent)
            seconds = 2 * LEASE if number % 5 == 0 else 0.1
            options = {"countdown": 2 * LEASE} if number % 5 == 1 else {}
            sent.append(str(site.publish("hold", number, seconds, options=options)))

        def done() -> set[str]:
            return {one.task_id for one in site.events("end")}

        def busy(number: int) -> bool:
            if len(sent) - len(done()) < 10:
                publish()
            return len(done()) >= number

        for number in range(1, 5):
            site.wait_until(lambda number=number: busy(20 * number), PATIENCE)
            workers.append(site.worker(concurrency=3, prefetch=2))
            if number % 2 == 0:
                workers[number // 2 - 1].terminate()
        site.wait_until(lambda: busy(120), PATIENCE)
        site.wait_until(lambda: done() == set(sent), PATIENCE)
        settled(site)
        assert len(site.events("start")) == len(sent)


def test_a_broker_s_user_without_a_right_to_what_only_informs(site: Site, broker: redis.Redis) -> None:
    """It is named once, and the messages are renewed."""
    rights = ("on", ">secret", "+@all", "~*", "&*", "-time", "-info")
    broker.execute_command("ACL", "SETUSER", "site", *rights)
    gate = site.gate()
    # kombu from 5.7 on needs TIME itself, for remote control alone.
    address = f"redis://site:secret@127.0.0.1:{site.broker.port}/0"
    limited = site.worker(broker_url=address, worker_enable_remote_control=False)
    site.publish("hold", "long", until=gate)
    site.started("long")
    other = site.worker()
    renewed(site, limited, other)
    assert len(site.events("start")) == 1, "the other one has put it back"
    broker.client_kill_filter(_type="normal", skipme=True)  # the next connection is told the same
    renewed(site, limited, times=1)
    gate.open()
    settled(site)
    assert [one.event for one in site.events(key="long")] == ["start", "end"]
    for command in ("time", "info"):
        assert limited.log().count(f"run: ACL SETUSER site +{command}\n") == 1
        assert limited.log().count(f"the broker refuses {command.upper()} to the user 'site'") == 1


class TestWhatTheBrokerHasHandedOut:
    """kombu has asked for a message before it knew that it wants no more: it waits nowhere that a kill can reach."""

    @pytest.fixture(autouse=True)
    def _asks_for_long(self, site: Site) -> None:
        site.configure(broker_transport_options={"polling_interval": 10})  # a second by itself

    def test_is_recorded_while_the_prefetch_count_is_reached(self, site: Site, broker: redis.Redis) -> None:
        """As by a countdown that ends: until then it allows one more."""
        gate = site.gate()
        first = site.worker(prefetch=2)
        site.publish("hold", "runs", until=gate)
        site.publish("hold", "due", until=gate, options={"countdown": 1})
        site.started("runs")
        inspect = site.app.control.inspect([first.name], timeout=1)
        site.wait_until(lambda: len((inspect.reserved() or {}).get(first.name, ())) == 1)
        site.publish("hold", "more", until=gate)
        site.wait_until(lambda: broker.hlen("unacked") == 3)
        first.kill()
        site.worker(concurrency=3)
        site.started("more", 1, LEASE + SLACK)
        gate.open()
        settled(site)

    def test_is_put_back_by_a_warm_shutdown(self, site: Site) -> None:
        """Which may take long, or end by ``kill -9``."""
        gate = site.gate()
        first = site.worker(prefetch=4)
        site.publish("hold", "runs", until=gate)
        site.started("runs")
        site.accepted(first)
        first.terminate()
        site.wait_until(lambda: not site.app.control.ping([first.name], timeout=1))  # it has left its loop
        site.publish("hold", "more")
        second = site.worker()
        assert site.started("more").pid in second.children()
        gate.open()
        first.ended()
        settled(site)
        assert [one.event for one in site.events(key="runs")] == ["start", "end"]


class TestTheSweep:
    """It puts back what dead workers had where no worker lives."""

    @staticmethod
    def lapsed(*arguments: str) -> dict[str, Any]:
        """What ``sweep_locks`` says of messages."""
        out = StringIO()
        call_command("sweep_locks", "--pause=0.2", "--json", *arguments, stdout=out, stderr=StringIO())
        document = json.loads(out.getvalue())
        return {**document["counts"]["lapsed"], "findings": [f for f in document["findings"] if f["kind"] == "lapsed"]}

    def test_puts_back_what_dead_workers_had_and_nothing_of_the_living(self, site: Site) -> None:
        """It is the sweep that lets a worker be started, and that one runs it all."""
        gate = site.gate()
        worker = site.worker(prefetch=2)
        site.publish("late_hold", "once", until=gate)
        site.started("once")
        ahead = site.publish("hold", "ahead")
        have(site, worker, 2)
        seen: set[float] = set()

        def renewed_meanwhile() -> bool:
            report = sweep(pause=0.2)
            assert report.counts["lapsed"].found == 0, report.findings
            seen.update(mark.at for mark in marks.read_marks(site.app))
            return len(seen) > 4 * LONG_ENOUGH

        site.wait_until(renewed_meanwhile, PATIENCE)
        worker.kill()
        assert (site.waiting(), count_messages()[site.queue()]) == (0, 2)
        site.wait_until(lambda: self.lapsed("--dry-run")["acted"] == 2, PATIENCE)
        assert site.waiting() == 0
        swept: list[dict[str, Any]] = []

        def all_put_back() -> bool:
            swept.extend(self.lapsed()["findings"])
            return site.waiting() == 2

        site.wait_until(all_put_back, PATIENCE)
        assert sorted(one["holder"].rpartition(".")[2].partition("[")[0] for one in swept) == ["hold", "late_hold"]
        assert str(ahead) in "".join(one["holder"] for one in swept)
        assert count_messages()[site.queue()] == 2
        gate.open()
        site.worker()
        assert [site.started(key, number, PATIENCE) for key, number in (("once", 2), ("ahead", 1))]
        site.wait_until(lambda: count_messages()[site.queue()] == 0, PATIENCE)

    def test_leaves_out_a_broker_that_is_down_or_has_just_started(self, site: Site) -> None:
        """Workers that were without it may still have to renew what they have."""
        site.configure(tasklock={"MESSAGE_LEASE": 3600})
        notes = sweep(pause=0).left_out
        assert any("workers have a lease's time to renew theirs" in note for note in notes)
        site.broker.kill()
        notes = sweep(pause=0).left_out
        assert any(note.startswith("messages of dead workers: the broker could not be asked") for note in notes)
        assert count_messages() is None
        site.broker.start()


def test_messages_are_counted_wherever_they_are(site: Site) -> None:
    """Two run, one is parked, two wait; and one in a queue that nobody consumes."""
    gate = site.gate()
    site.worker(concurrency=2)
    site.publish("queued_hold", "a", until=gate)
    site.started("a")
    site.publish("queued_hold", "a", until=gate)
    site.wait_until(lambda: parked_messages("hold:a", state="parked"))
    site.publish("hold", "b", until=gate)
    site.started("b")
    for key in ("c", "d"):
        site.publish("hold", key, until=gate)
    site.publish("hold", "e", options={"queue": site.queue("other")})
    site.wait_until(lambda: count_messages() == {site.queue(): 5, site.queue("other"): 1})
    assert site.waiting() == 2
    gate.open()
    site.wait_until(lambda: count_messages() == {site.queue(): 0, site.queue("other"): 1}, PATIENCE)


class TestSlotsThatHang:
    """The lease vouches for progress: what waits behind them is given back soon."""

    @pytest.fixture(autouse=True)
    def _soon(self, site: Site) -> None:
        site.configure(tasks=("tests.support.celery_site.short_patience",))

    @pytest.mark.parametrize("pool", ["prefork", "threads"])
    def test_what_waits_behind_them_runs_elsewhere(self, site: Site, pool: str) -> None:
        """And what they run is delivered once: they may yet go on, and do not run then what was given back."""
        gate, elsewhere = site.gate(), site.gate()
        first = site.worker(concurrency=2, prefetch=2, pool=pool)
        for key in ("hangs", "hangs too"):
            site.publish("hold", key, until=gate)
            site.started(key)
        for key in ("waits", "waits too"):
            site.publish("hold", key, until=elsewhere)
        have(site, first, 4)
        children = first.children() if pool == "prefork" else []
        for child in children:
            os.kill(child, signal.SIGSTOP)
        second = site.worker(concurrency=3)  # with a slot for one that is given back once more
        starts = [site.started(key, 1, PATIENCE) for key in ("waits", "waits too")]
        assert {one.pid for one in starts} <= set(second.children())
        have(site, first, 2, stuck=2)
        assert "2 wait, and no slot of this worker has begun or ended anything for" in first.log()
        assert count_stuck() == 2
        renewed(site, first, times=1)
        elsewhere.open()
        second.terminate()
        second.ended()
        gate.open()
        for child in children:
            os.kill(child, signal.SIGCONT)
        last = site.publish("hold", "after")
        site.outcome(last, PATIENCE)  # the slots have come to what was given back, and fetch again
        settled(site)
        have(site, first, 0, stuck=0)
        assert sorted(one.key for one in site.events("start")) == ["after", "hangs", "hangs too", "waits", "waits too"]


class TestTasksThatOutliveTheirLock:
    """They are ended before their message goes on; where that is impossible, it stays with its worker."""

    @pytest.fixture(autouse=True)
    def _soon(self, site: Site) -> None:
        site.configure(lease=6, timeout=6)

    @pytest.mark.parametrize("hangs", [False, True], ids=["works", "hangs"])
    def test_it_is_killed_and_starts_again(self, site: Site, hangs: bool) -> None:
        """One without a lock, one without a timeout and one that has ended in time are delivered once."""
        gate = site.gate()
        first = site.worker(concurrency=4)
        for key, once in (("outlives", None), ("endless", {"timeout": None}), ("longer", {"timeout": 600})):
            site.publish("late_hold", key, until=gate, once=once)
        site.publish("hold", "plain", until=gate)
        for key in ("outlives", "endless", "longer", "plain"):
            site.started(key)
        site.accepted(first, 4)
        second = site.worker(concurrency=4)
        old = site.started("outlives").pid
        if hangs:
            os.kill(old, signal.SIGSTOP)
        site.started("outlives", 2, PATIENCE)
        assert old not in {one.pid for one in processes()}, "two bodies at once"
        assert f"its process {old} was killed" in first.log()
        gate.open()
        settled(site)
        assert len(site.events("start")) == 5
        assert sorted(one.key for one in site.events("end")) == ["endless", "longer", "outlives", "plain"]
        assert "outlives" not in {one.key for one in site.events("end") if one.pid == old}
        have(site, first, 0, stuck=0)
        have(site, second, 0, stuck=0)

    def test_it_fails_visibly_if_it_always_does(self, site: Site) -> None:
        site.configure(tasks=("tests.support.celery_site.brittle_tasks",))
        site.worker()
        ran = site.publish("brittle_hold", "always", until=site.gate())
        state, error = site.outcome(ran, PATIENCE)
        assert (state, type(error).__name__) == ("FAILURE", "CrashLoop")
        assert len(site.events("start")) == 1

    def test_so_does_its_row(self, site: Site) -> None:
        site.configure(tasks=("tests.support.celery_site.brittle_tasks",))
        site.worker()
        row = Video.objects.create()
        state, error = site.outcome(site.publish("brittle_video", row.pk, until=site.gate()), PATIENCE)
        assert (state, type(error).__name__) == ("FAILURE", "CrashLoop")
        assert len(site.events("start")) == 1
        row.refresh_from_db()
        assert (row.status, row.lock_token) == (GUARD.failed, "")

    def test_one_that_ends_by_itself_meanwhile_runs_once(self, site: Site) -> None:
        site.configure(tasklock={"MESSAGE_LEASE": 10 * LEASE})
        gate = site.gate()
        worker = site.worker()
        site.publish("late_hold", "late", until=gate)
        have(site, worker, 1, stuck=1)
        renewed(site, worker)
        gate.open()
        have(site, worker, 0, stuck=0)
        settled(site)
        assert [one.event for one in site.events(key="late")] == ["start", "end"]
        assert "was killed" not in worker.log()

    @pytest.mark.parametrize("pool", ["threads", "gevent"])
    def test_it_stays_where_tasks_have_no_processes(self, site: Site, pool: str) -> None:
        gate = site.gate()
        first = site.worker(pool=pool)
        site.publish("late_hold", "stays", until=gate)
        site.started("stays")
        second = site.worker()
        site.wait_until(lambda: "this pool cannot end it" in first.log(), PATIENCE)
        renewed(site, first, second)
        assert [one.event for one in site.events(key="stays")] == ["start"]
        have(site, first, 1, stuck=1)
        assert first.log().count("this pool cannot end it") == 1
        gate.open()
        settled(site)
        assert [one.event for one in site.events(key="stays")] == ["start", "end"]


class Running:
    """What the main process knows of a task that runs, from its message."""

    acknowledged = False
    time_start = 0.0

    def __init__(self, task: Any, *args: Any, **headers: Any) -> None:
        self.task, self.id, self.args, self.kwargs = task, "1", args, {}
        self._context = Context(id="1", task=task.name, **headers)

    def humaninfo(self) -> str:
        return self.task.name


class TestWhatOutlivesItsLock:
    """Only what was seen to have its lock, and has it no more after the time at which it would have ended."""

    @pytest.fixture
    def outlived(self) -> Outlived:
        return Outlived(60)

    def held(self, request: Running, *names: str) -> TaskLock:
        lock = TaskLock(*names, timeout=600, task=Task(request.task.name, request.id))
        assert lock.acquire()
        return lock

    def test_a_lock_that_is_extended_ends_later(self, app: OnceApp, outlived: Outlived) -> None:
        running: Any = Running(app.task(key="outlived"))
        lock = self.held(running, "outlived")
        outlived._judge(running)
        assert 590 < outlived._until[running] - monotonic() <= 600
        lock.extend(1200)
        outlived._judge(running)
        assert 1190 < outlived._until[running] - monotonic() <= 1200
        lock.release()
        outlived._judge(running)
        assert len(outlived) == 1
        self.held(running, "outlived")  # the store had lost it, and its holder wrote it again
        outlived._judge(running)
        assert len(outlived) == 0

    def test_who_waits_or_runs_without_the_lock_outlives_none(self, app: OnceApp, outlived: Outlived) -> None:
        running: Any = Running(app.task(key="outlived"))
        TaskLock("outlived").acquire()
        outlived._judge(running)
        assert (len(outlived), outlived._until) == (0, {})

    def test_a_lock_of_several_names_and_one_of_a_message_by_send_task(self, app: OnceApp, outlived: Outlived) -> None:
        @app.app.task(shared=False)
        @task_lock(["from:{a}", "to:{b}"])
        def transfer(a: int, b: int) -> None: ...

        sent = app.task(lambda a, b: None, key="sent:{a}")
        for task, names in ((app.app.tasks[transfer.name], ("from:1", "to:2")), (sent, ("sent:1",))):
            running: Any = Running(task, 1, 2)
            self.held(running, *names)
            outlived._judge(running)
            assert 590 < outlived._until[running] - monotonic() <= 600

    def test_no_lock_is_not_looked_at_again(self, app: OnceApp, outlived: Outlived) -> None:
        running: Any = Running(app.app.tasks["celery.backend_cleanup"])
        outlived._judge(running)
        assert outlived._until[running] == math.inf
