"""The harness itself: real workers start, work, are watched and killed, and nobody is left."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading

import pytest
from celery import current_app

from tests.support.celery_site import journal, tasks
from tests.support.celery_site.journal import Event, most_at_once
from tests.support.processes import processes
from tests.support.stores import eventually
from tests.testapp.models import Video

pytest_plugins = ["tests.support.celery_site.fixtures"]

POOLS = ["prefork", "threads", "solo", "gevent"]


@pytest.mark.broker
@pytest.mark.parametrize("pool", POOLS)
@pytest.mark.quick
def test_a_task_runs_in_a_worker_and_is_seen_from_here(celery_site, pool):
    worker = celery_site.worker(pool=pool, concurrency=2)
    assert f"transport:   {'amqp' if celery_site.is_amqp else 'redis'}://" in worker.log()
    gate = celery_site.gate()
    result = celery_site.publish("locked_hold", "a", until=gate)
    start = celery_site.started("a")
    assert start.task == tasks.locked_hold.name
    assert start.task_id == result.id
    assert start.pid in [one.pid for one in worker.members()]
    assert (start.pid in worker.children()) is (pool == "prefork")
    info = celery_site.lock("hold:a")
    assert info is not None
    assert info.task_id == result.id
    assert celery_site.locks.exists("task_lock:hold:a")
    gate.open()
    assert celery_site.outcome(result) == ("SUCCESS", {"status": "success", "key": "a"})
    assert celery_site.lock("hold:a") is None
    assert [one.event for one in celery_site.events(key="a")] == ["start", "end"]


@pytest.mark.database
@pytest.mark.quick
def test_the_row_is_the_same_here_and_there(celery_site):
    video = Video.objects.create()
    celery_site.worker()
    gate = celery_site.gate()
    result = tasks.guarded_hold.delay(video.pk, until=gate)
    celery_site.started(video.pk)
    video.refresh_from_db()
    assert video.status == "processing"
    gate.open()
    assert celery_site.outcome(result)[0] == "SUCCESS"
    video.refresh_from_db()
    assert (video.status, video.progress) == ("ready", 100)


def test_a_child_that_is_killed_is_replaced(celery_site):
    worker = celery_site.worker(concurrency=1)
    [child] = worker.children()
    result = celery_site.publish("hold", "a", until=celery_site.gate())
    assert celery_site.started("a").pid == child
    worker.kill_one(child)
    state, error = celery_site.outcome(result)
    assert state == "FAILURE"
    assert "WorkerLostError" in repr(error)
    celery_site.wait_until(lambda: worker.children() not in ([], [child]))
    assert celery_site.outcome(celery_site.publish("hold", "b"))[0] == "SUCCESS"


@pytest.mark.broker
def test_a_killed_worker_leaves_no_process_and_its_message_is_redelivered(celery_site):
    celery_site.configure(visibility_timeout=1, task_acks_late=True)
    worker = celery_site.worker(concurrency=2)
    gate = celery_site.gate()
    result = celery_site.publish("hold", "a", until=gate)
    celery_site.started("a")
    worker.kill()
    assert worker.members() == []
    assert not worker.alive()
    gate.open()
    celery_site.worker()
    again = celery_site.started("a", number=2)
    assert again.task_id == result.id
    assert celery_site.outcome(result)[0] == "SUCCESS"
    assert [one.event for one in celery_site.events()] == ["start", "killed", "killed", "killed", "start", "end"]


def test_children_die_with_their_main_process(celery_site):
    worker = celery_site.worker(concurrency=2)
    celery_site.publish("hold", "a", until=celery_site.gate())
    celery_site.started("a")
    worker.kill_one(worker.pid)
    assert worker.members() == []
    assert most_at_once([*celery_site.events(), *celery_site.events("start")]) == 1


def test_a_stopped_worker_does_nothing_until_it_goes_on(celery_site):
    worker = celery_site.worker(concurrency=2)
    worker.stop()
    assert {one.state for one in worker.members()} == {"T"}
    result = celery_site.publish("hold", "a")
    other = celery_site.worker(queues=["other"])
    assert celery_site.outcome(celery_site.publish("hold", "b", options={"queue": celery_site.queue("other")}))
    assert celery_site.events(key="a") == []
    worker.go_on()
    assert celery_site.outcome(result)[0] == "SUCCESS"
    assert {one.pid for one in celery_site.events("start", "b")} == set(other.children())


def test_what_waits_is_counted(celery_site):
    assert celery_site.waiting() == 0
    for key in range(3):
        celery_site.publish("hold", key)
    assert celery_site.waiting() == 3
    celery_site.worker()
    celery_site.wait_until(lambda: len(celery_site.events("end")) == 3)
    assert celery_site.waiting() == 0


def test_warm_shutdown(celery_site):
    worker = celery_site.worker(concurrency=1)
    gate = celery_site.gate()
    result = celery_site.publish("hold", "a", until=gate)
    celery_site.started("a")
    celery_site.accepted(worker)
    worker.terminate()
    celery_site.wait_until(lambda: "Warm shutdown" in worker.log())
    gate.open()
    assert worker.ended() == 0
    assert celery_site.outcome(result)[0] == "SUCCESS"
    assert worker.members() == []


def test_cold_shutdown(celery_site):
    worker = celery_site.worker(concurrency=1)
    celery_site.publish("hold", "a", until=celery_site.gate())
    celery_site.started("a")
    celery_site.accepted(worker)
    worker.quit()
    worker.ended()
    assert "Cold shutdown" in worker.log()


@pytest.mark.broker
def test_options_reach_the_worker_they_are_for(celery_site):
    celery_site.configure(lease=7)
    celery_site.worker(queues=["slow"])
    quick = celery_site.worker(queues=["quick"], lease=5, pool="threads", concurrency=3)
    gate = celery_site.gate()
    for number in range(3):
        celery_site.publish("locked_hold", number, until=gate, options={"queue": celery_site.queue("quick")})
    celery_site.publish("locked_hold", "slow", until=gate, options={"queue": celery_site.queue("slow")})
    for key in (0, 1, 2, "slow"):
        celery_site.started(key)
    assert {one.pid for one in celery_site.events("start") if one.key != "slow"} == {quick.pid}
    assert 5 < celery_site.locks.pttl("task_lock:hold:slow") / 1000 <= 7
    assert celery_site.locks.pttl("task_lock:hold:0") / 1000 <= 5
    gate.open()


def test_a_flush_of_the_lock_store_loses_no_message(celery_site):
    result = celery_site.publish("locked_hold", "a")
    celery_site.locks.flushall()
    celery_site.worker()
    assert celery_site.outcome(result)[0] == "SUCCESS"


def test_the_app_is_the_current_one_in_threads_too(celery_site):
    seen = []
    thread = threading.Thread(target=lambda: seen.append(current_app.main))
    thread.start()
    thread.join()
    assert seen == [current_app.main] == [celery_site.app.main]


@pytest.mark.slow
def test_no_worker_outlives_tests_that_are_killed(tmp_path):
    environment = {**os.environ, journal.ENVIRONMENT: str(tmp_path / "journal")}
    code = _SOMEBODY.format(folder=str(tmp_path))
    with subprocess.Popen([sys.executable, "-c", code], env=environment, stdout=subprocess.PIPE) as somebody:
        group = int(somebody.stdout.readline())
        assert any(one.group == group for one in processes())
        somebody.send_signal(signal.SIGKILL)
    eventually(lambda: not any(one.group == group for one in processes()))


_SOMEBODY = """
import signal, types
from pathlib import Path
from unittest.mock import patch
from django.conf import settings
import django
django.setup()
from tests.support.celery_site.site import Site
with Site(Path({folder!r}), types.SimpleNamespace(), None) as site:
    worker = site.worker(concurrency=1)
    print(worker.pid, flush=True)
    signal.pause()
"""


class TestMostAtOnce:
    @staticmethod
    def judge(*events):
        return most_at_once(Event(event, key, "", key, pid, 0.0, {}) for event, key, pid in events)

    def test_counts_bodies(self):
        assert self.judge() == 0
        assert self.judge(("start", "a", 1), ("end", "a", 1), ("start", "a", 2), ("raised", "a", 2)) == 1
        assert self.judge(("start", "a", 1), ("start", "b", 1), ("end", "a", 1), ("start", "c", 2)) == 2

    def test_a_killed_run_is_not_counted_as_running(self):
        assert self.judge(("start", "a", 1), ("killed", "", 1), ("start", "a", 2)) == 1
        assert self.judge(("start", "a", 1), ("killed", "", 3), ("start", "a", 2)) == 2
