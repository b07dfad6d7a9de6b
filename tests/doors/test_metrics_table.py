"""The table of metrics: docs/metrics.md and the code have the same, and the collector shows no other."""

from __future__ import annotations

import json
import re
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.utils import timezone
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from django_tasklock import (
    ConcurrencyLimiter,
    RateLimiter,
    RateLimitExceeded,
    TaskLock,
    acquire_task_lock,
    force_release_task_lock,
)
from django_tasklock.backends import get_backend
from django_tasklock.backends.contract.metrics import PARKED, Count, Hour
from django_tasklock.backends.database.metrics import DatabaseMetrics
from django_tasklock.metrics.exposition import StoreCollector, make_metric
from django_tasklock.metrics.table import BY_NAME, METRICS
from django_tasklock.models import SweepEntry
from django_tasklock.operations.metrics import Histogram, last_holds, read_gauges, read_hours, read_totals
from tests.support.public import in_store
from tests.support.redis_server import free_port
from tests.support.stores import eventually

DOCS = Path(__file__).resolve().parents[2] / "docs" / "metrics.md"
LISTING = ("redis", "database", "memory")


@pytest.fixture(
    params=[
        pytest.param("redis", marks=pytest.mark.redis),
        pytest.param("database", marks=pytest.mark.database),
        "memory",
    ]
)
def store(request: Any, settings: Any) -> Any:
    yield from in_store(request.param, settings)


def shown() -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    """What a scrape shows, by the name of a sample and its labels."""
    registry = CollectorRegistry()
    registry.register(StoreCollector())
    text = generate_latest(registry).decode()
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_the_page_and_the_code_have_the_same():
    rows = re.findall(r"^\| `([^`]+)` \| (\w+) \| ([^|]*) \| ([^|]+) \|$", DOCS.read_text("utf-8"), re.MULTILINE)
    found = [(name, kind, tuple(re.findall(r"`(\w+)`", labels)), text) for name, kind, labels, text in rows]
    assert found == [tuple(metric) for metric in METRICS]


def test_names_are_unique():
    assert len(BY_NAME) == len(METRICS)


@pytest.mark.django_db(transaction=True)
class TestScraping:
    def test_what_happened_is_shown(self, store):
        for number in range(3):
            with TaskLock(f"video:{number}", kind="video:{id}"):
                assert not acquire_task_lock(f"video:{number}")
        with ConcurrencyLimiter("transcode", 1):
            pass
        limiter = RateLimiter("searcher", "1/m")
        limiter.acquire()
        with pytest.raises(RateLimitExceeded):
            limiter.acquire(0.001)
        found = shown()
        kind = (("kind", "video:{id}"),)
        assert found["tasklock_acquired_total", kind] == 3
        assert found["tasklock_released_total", kind] == 3
        assert found["tasklock_wait_seconds_count", kind] == 3
        assert found["tasklock_hold_seconds_count", kind] == 3
        assert found["tasklock_conflicts_total", (("action", "skip"), ("kind", ""))] == 3
        assert found["tasklock_limiter_granted_total", (("how", "at_once"), ("limiter", "searcher"))] == 1
        assert found["tasklock_limiter_refused_total", (("limiter", "searcher"),)] == 1
        assert found["searcher_rate_limiter_throttled_count", ()] == 1
        assert found["searcher_rate_limiter_requests_per_minute", ()] == 1
        assert found["tasklock_limiter_granted_total", (("how", "at_once"), ("limiter", "transcode"))] == 1
        assert found["tasklock_store_up", ()] == 1
        assert found["tasklock_held", ()] == 0
        assert ("db_pool_connections_in_use", (("database", "default"),)) in found

    def test_the_default_tenant_is_a_tenant(self, store):
        RateLimiter("api", "5/m", tenants="2/m").acquire()
        found = shown()
        for limiter in ("api", "api:tenant"):
            assert found["tasklock_limiter_granted_total", (("how", "at_once"), ("limiter", limiter))] == 1

    def test_limiters_whose_names_are_one_metric_are_added_up(self, store):
        """A metric's name has no such letters."""
        for name, calls in (("限流", 9), ("检索", 1)):
            for _ in range(calls):
                RateLimiter(name, "5/m").try_acquire()
        found = shown()
        assert found["___rate_limiter_throttled_count", ()] == 4
        assert found["___rate_limiter_requests_per_minute", ()] == 6

    def test_nothing_is_shown_that_is_not_in_the_table(self, store):
        with TaskLock("video:1", kind="video:{id}"):
            pass
        RateLimiter("searcher", "1/m").acquire()
        known = {metric.name.replace("{limiter}", "searcher") for metric in METRICS}
        known |= {f"{name}_{part}" for name in known for part in ("bucket", "count", "sum", "created")}
        assert {name for name, _ in shown()} <= known

    def test_a_kind_is_found_as_it_was_written(self, store):
        kind = f"video:{'x' * 100}:{{id}}"
        with TaskLock("video:1", kind=kind):
            pass
        assert read_totals().of_kind(kind).released == 1

    def test_what_operations_read(self, store):
        with TaskLock("video:1", kind="video:{id}"):
            pass
        counts = read_totals().of_kind("video:{id}")
        assert (counts.acquired, counts.released, counts.held, counts.conflicted) == (1, 1, 0, 0)
        assert sum(hour.totals.of_kind("video:{id}").acquired for hour in read_hours()) == 1
        assert last_holds("video:1") == []
        gauges = read_gauges()
        assert (gauges.store_up, gauges.held, gauges.orphaned, gauges.longest_held) == (True, 0, 0, 0.0)

    def test_switched_off(self, store, settings):
        settings.TASKLOCK = {**settings.TASKLOCK, "METRICS": False}
        with TaskLock("video:1"):
            assert not acquire_task_lock("video:1")
        with ConcurrencyLimiter("transcode", 1):
            pass
        RateLimiter("searcher", "1/m").acquire()
        totals = read_totals()
        assert [*totals.kinds, *totals.limiters] == []


def test_a_histogram_is_cumulative_as_prometheus_wants_it():
    counted = Histogram((1, 2, *[0] * (len(Histogram().bounds) - 2), 4), 3.5)
    found = make_metric("tasklock_wait_seconds", {("video:{id}",): counted})
    samples = {(sample.name, sample.labels.get("le")): sample.value for sample in found.samples}
    assert samples["tasklock_wait_seconds_bucket", "0.005"] == 1
    assert samples["tasklock_wait_seconds_bucket", "0.025"] == 3
    assert samples["tasklock_wait_seconds_bucket", "3600.0"] == 3
    assert samples["tasklock_wait_seconds_bucket", "+Inf"] == 7
    assert samples["tasklock_wait_seconds_sum", None] == 3.5


@pytest.mark.django_db
class TestGauges:
    @pytest.fixture(autouse=True)
    def _memory(self, settings):
        yield from in_store("memory", settings)

    @staticmethod
    def run_of_a_sweep(ago: float, kept: int, **more: str) -> None:
        tally = {"found": kept + 3, "acted": 3, "changed": 0, "kept": kept}
        report = json.dumps({"classes": {"abandoned": tally}})
        SweepEntry.objects.create(
            at=timezone.now() - timedelta(seconds=ago), actor="beat", swept=3, seconds=0.1, report=report, **more
        )

    def test_only_a_whole_sweep_says_what_is_left(self):
        assert (read_gauges().stale_claims, read_gauges().last_sweep_age) == (None, None)
        self.run_of_a_sweep(900, 1)
        self.run_of_a_sweep(600, 2)
        self.run_of_a_sweep(300, 4, scope="prefix=video:")
        self.run_of_a_sweep(0, 8, problem="the store could not be asked")
        gauges = read_gauges()
        assert gauges.stale_claims == 2
        assert gauges.last_sweep_age >= 600

    def test_the_longest_hold_and_the_last_ones_are_in_seconds(self):
        began = time.monotonic()
        assert acquire_task_lock("video:1")
        longest = eventually(lambda: read_gauges().longest_held)
        assert longest <= time.monotonic() - began + 0.01
        force_release_task_lock("video:1")
        [hold] = last_holds("video:1")
        assert hold.ended == "forced"
        assert longest <= hold.held_for <= time.monotonic() - began + 0.01

    def test_a_rate_of_an_hour_is_shown_by_the_minute(self):
        for _ in range(3):
            RateLimiter("3-calls", "180/h").acquire()
        found = shown()
        assert found["_3_calls_rate_limiter_requests_per_minute", ()] == 3 / 60
        assert found["tasklock_limiter_used_ratio", (("limiter", "3-calls"),)] == 3 / 180
        assert found["tasklock_limiter_wait_seconds_count", (("limiter", "3-calls"),)] == 3, "at once is 0 seconds"
        assert ("tasklock_limiter_hold_seconds_count", (("limiter", "3-calls"),)) not in found

    def test_messages_of_the_database_are_added_to_the_hours_of_the_store(self, monkeypatch):
        with TaskLock("video:1", kind="video:{id}"):
            pass
        [hour] = get_backend().metrics.hours(2)
        message = Hour(hour.at, {(PARKED, "videos.tasks.report"): Count(5, 0)})
        monkeypatch.setattr(DatabaseMetrics, "hours", lambda self, number: [message])
        [both] = read_hours(2)
        assert both.totals.of_kind("video:{id}").acquired == 1
        assert [(one.kind, one.parked) for one in both.totals.messages] == [("videos.tasks.report", 5)]


KEYS = {"prometheus": {"secret": "a-secret", "may": ["read"]}, "hands": {"secret": "another", "may": ["release"]}}


@pytest.mark.django_db
class TestView:
    @pytest.fixture(autouse=True)
    def _memory(self, settings):
        settings.ROOT_URLCONF = "django_tasklock.metrics.urls"
        yield from in_store("memory", settings, API_KEYS=KEYS)

    def test_a_key_that_may_read(self, client):
        answer = client.get("/", headers={"Authorization": "Api-Key a-secret"})
        assert answer.status_code == 200
        assert answer["Content-Type"].startswith("text/plain")
        assert b"tasklock_store_up 1.0" in answer.content

    def test_a_store_that_is_down_is_said_and_nothing_of_it_is_shown(self, client, settings):
        settings.TASKLOCK = {"LOCATION": f"redis://127.0.0.1:{free_port()}/0", "API_KEYS": KEYS}
        answer = client.get("/", headers={"Authorization": "Api-Key a-secret"})
        assert answer.status_code == 200
        assert b"tasklock_store_up 0.0" in answer.content
        assert b"tasklock_held" not in answer.content
        assert b"tasklock_parked 0.0" in answer.content, "those are in the database"

    def test_other_requests_are_refused(self, client):
        assert client.get("/").status_code == 401
        assert client.get("/", headers={"Authorization": "Api-Key wrong"}).status_code == 401
        assert client.get("/", headers={"X-API-Key": "another"}).status_code == 403
        assert client.post("/").status_code == 405
