"""gold standard 8.15: a sweep's memory and its requests do not grow with what has piled up."""

from __future__ import annotations

import json
import os
import tracemalloc
from typing import Any

import pytest
import redis

from django_tasklock.backends import get_backend
from django_tasklock.guards import rows
from django_tasklock.locks.holder import holder_json
from django_tasklock.operations import Actor
from django_tasklock.operations.sweep import report as reports
from django_tasklock.operations.sweep.guards import Guards
from django_tasklock.operations.sweep.options import SweepOptions
from tests.support import environment
from tests.support.guards import ONCE, new_token, no_guards
from tests.support.stores import clear
from tests.support.sweeping import guarded_function, hold, swept, tally_of
from tests.testapp.models import PlainVideo, Video

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.redis]

EXPIRED, LIVE, DEAD = 20_000, 3_000, 1_500


INDEX = "task_lock#index"

NOBODY = 4_194_305  # a pid beyond the most that Linux gives


def seed(url: str, expired: int, live: int, dead: int) -> None:
    """Locks as the scripts leave them: a value with an expiry, and a place in the index."""
    holder = json.loads(holder_json())
    ended = json.dumps({**holder, "pid": NOBODY, "boot": "0"}, separators=(",", ":"))
    elsewhere = json.dumps({**holder, "host": "elsewhere", "boot": "0", "proc": "0:0"}, separators=(",", ":"))
    with redis.Redis.from_url(url) as client:
        now = int(client.time()[0]) * 1000  # type: ignore[index]
        pipe = client.pipeline(transaction=False)
        pipe.zadd(INDEX, {f"task_lock:old:{number}": now - 3_600_000 + number for number in range(expired)})
        for number in range(live):
            who = ended if number < dead else elsewhere
            value = f'{{"token":"{number:032x}","holder":{who},"at":{now + number // 100},"fence":{number}'
            value += f',"until":{now + 7_200_000}}}'
            ends = now + 3_600_000 + number // 100  # as in the scripts: the index says when it ends
            pipe.set(f"task_lock:live:{number}", value, pxat=ends)
            pipe.zadd(INDEX, {f"task_lock:live:{number}": ends})
        pipe.execute()


@pytest.fixture(autouse=True)
def empty() -> None:
    no_guards()
    clear("redis")


@pytest.mark.slow
def test_bounded_memory_and_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reports, "MAX_FINDINGS", 100)
    url = os.environ[environment.REDIS]
    seed(url, EXPIRED, LIVE, DEAD)
    swept(dry_run=True)  # so that what is imported and cached is
    with redis.Redis.from_url(url) as client:
        client.config_resetstat()
        tracemalloc.start()
        report = swept(pause=0.0)
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        calls: Any = client.info("commandstats")
    assert tally_of(report) == {"dead": (DEAD, DEAD, 0, 0)}
    assert len(report.findings) == 100
    assert report.unlisted == DEAD - 100
    assert report.looked_at["locks"] >= LIVE
    assert tuple(get_backend().counts()) == (LIVE - DEAD, 0, 0, 0)
    requests = calls["cmdstat_evalsha"]["calls"]
    assert requests < EXPIRED / 1000 + LIVE / 500 + 2 * DEAD + 50, "in pages; but for what is acted on, which is twice"
    assert peak < 12 * 2**20, f"{peak / 2**20:.1f} MiB"


@pytest.mark.database
def test_rows_in_pages(monkeypatch: pytest.MonkeyPatch, django_assert_max_num_queries: Any) -> None:
    guarded_function(guard=ONCE)
    Video.objects.bulk_create(
        Video(status="processing" if number % 2 else "ready", lock_token=new_token() if number % 2 else "")
        for number in range(5_000)
    )
    live = Video.objects.filter(status="processing").first()
    assert live is not None
    hold(f"video:{live.pk}", row=f"testapp.video:{live.pk}")
    with django_assert_max_num_queries(40):
        report = swept(dry_run=True)
    assert tally_of(report)["abandoned"] == (2_499, 2_499, 0, 0)
    assert report.looked_at["rows"] == 2_500


@pytest.mark.parametrize(("model", "index"), [(Video, "video_lock_token"), (PlainVideo, "plainvideo_status")])
def test_the_index_is_used_for_claimed_rows(db: None, model: Any, index: str) -> None:
    from django.db import connection

    if connection.vendor != "sqlite":  # others choose by statistics, which an empty table has none of
        return
    guarded_function(model, guard=ONCE)
    for _, where, key, _ in Guards(
        SweepOptions.from_arguments(False, None, "", (), False, Actor("test"), 0.0)
    ).claim_queries():
        plan = model._base_manager.filter(where).order_by(key)[:1000].explain()
        assert f"USING INDEX testapp_{index}" in plan
        assert "TEMP" not in plan, "nothing is sorted"


def test_unclaimed_rows_are_sought_among_the_newest_where_no_index_has_the_state(
    db: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rows, "NEWEST", 3)
    guarded_function(guard=ONCE)
    Video.objects.bulk_create(Video(status="processing") for _ in range(5))
    options = SweepOptions.from_arguments(False, None, "", (), False, Actor("test"), 0.0)
    [(model, where, *_)] = Guards(options).unclaimed_queries()
    assert model._base_manager.filter(where).count() == 3
