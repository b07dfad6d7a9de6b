"""A task runs in a real worker of each pool, under its lock and on its row; and what judges that counts right."""

from __future__ import annotations

import pytest

from tests.support.celery_site import tasks
from tests.support.celery_site.journal import Event, most_at_once
from tests.support.guards import states
from tests.testapp.models import Video

pytest_plugins = ["tests.support.celery_site.fixtures"]


@pytest.mark.broker
@pytest.mark.database
@pytest.mark.quick
@pytest.mark.parametrize("pool", ["prefork", "gevent"])
def test_a_task_runs_in_a_worker_and_is_seen_from_here(celery_site, pool):
    worker, video = celery_site.worker(pool=pool, concurrency=2), Video.objects.create()
    assert f"transport:   {'amqp' if celery_site.is_amqp else 'redis'}://" in worker.log()
    gate = celery_site.gate()
    result = celery_site.publish("guarded_hold", video.pk, until=gate)
    start = celery_site.started(video.pk)
    assert (start.task, start.task_id) == (tasks.guarded_hold.name, result.id)
    assert start.pid in [one.pid for one in worker.members()]
    assert (start.pid in worker.children()) is (pool == "prefork")
    name = f"video:{video.pk}"
    info = celery_site.lock(name)
    assert info is not None
    assert info.task_id == result.id
    assert celery_site.locks.exists(f"task_lock:{name}")
    assert states(video)[0] == "processing"
    gate.open()
    assert celery_site.outcome(result) == ("SUCCESS", {"status": "success", "key": video.pk})
    assert celery_site.lock(name) is None
    assert states(video)[:2] == ("ready", 100)
    assert [one.event for one in celery_site.events(key=video.pk)] == ["start", "end"]


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
    """The judge of all scenarios with workers."""

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
