"""What a scrape shows: what was counted, what is so now, and nothing that the page does not list."""

from __future__ import annotations

import re
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.utils import timezone
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from django_tasklock import (
    ConcurrencyLimiter,
    RateLimiter,
    RateLimitExceeded,
    TaskLock,
    acquire_task_lock,
    counts,
)
from django_tasklock.metrics.collector import TaskLockCollector
from django_tasklock.models import EventCount, SweepEntry
from django_tasklock.operations.state import read_gauges
from tests.support.public import in_store
from tests.support.redis_server import free_port
from tests.support.stores import eventually

DOCS = Path(__file__).resolve().parents[2] / "docs" / "metrics.md"
LISTED = set(re.findall(r"^\| `([^`]+)` \| (?:counter|gauge|histogram) \|", DOCS.read_text("utf-8"), re.MULTILINE))


@pytest.fixture(
    params=[
        pytest.param("redis", marks=pytest.mark.redis),
        pytest.param("database", marks=pytest.mark.database),
    ]
)
def store(request: Any, settings: Any) -> Any:
    yield from in_store(request.param, settings)


def shown() -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    """What a scrape shows, by the name of a sample and its labels."""
    assert counts.flush()
    registry = CollectorRegistry()
    registry.register(TaskLockCollector())
    text = generate_latest(registry).decode()
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


@pytest.mark.django_db(transaction=True)
class TestScraping:
    def test_what_happened_is_shown_and_nothing_that_is_not_listed(self, store):
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
        assert found["tasklock_limiter_granted_total", (("how", "at_once"), ("limiter", "transcode"))] == 1
        assert found["tasklock_limiter_hold_seconds_count", (("limiter", "transcode"),)] == 1
        assert found["tasklock_store_up", ()] == 1
        assert found["tasklock_held", ()] == 0
        assert ("db_pool_connections_in_use", (("database", "default"),)) in found
        known = LISTED | {f"{name}_{part}" for name in LISTED for part in ("bucket", "count", "sum", "created")}
        assert {name for name, _ in found} <= known

    def test_permits_do_not_hide_a_full_rate_limit_of_the_same_name(self, store):
        limiter = RateLimiter("searcher", "1/m")
        limiter.reserve()
        limiter.reserve()
        with ConcurrencyLimiter("searcher", 10):
            found = shown()
        assert found["tasklock_limiter_used_ratio", (("limiter", "searcher"),)] == 1
        assert found["tasklock_limiter_waiting", (("limiter", "searcher"),)] == 1
        assert found["tasklock_limiter_members", (("limiter", "searcher"),)] == 1


@pytest.mark.django_db(transaction=True)
class TestCounts:
    """As the table has them."""

    @pytest.fixture(autouse=True)
    def _memory(self, settings):
        yield from in_store("memory", settings)

    @staticmethod
    def count(event: str, kind: str, number: int = 1, bucket: int = 0, milliseconds: int = 0, hour: int = 0) -> None:
        EventCount.objects.create(
            hour=hour, event=event, kind=kind, number=number, bucket=bucket, milliseconds=milliseconds
        )

    def test_every_event_has_its_counter(self):
        for number, event in enumerate(
            (
                "acquired", "released", "expired", "forced", "lost", "conflict:retry", "limit.granted",
                "limit.waited", "limit.refused", "limit.cancelled", "limit.pushback", "limit.forced", "message.parked",
                "message.promoted", "message.replaced", "message.taken_over", "claim.stale", "worker.late",
                "limit.expired",
            ),
            1,
        ):  # fmt: skip
            self.count(event, "a", number)
            self.count(event, "a", 1000, hour=3600)
        found = shown()
        numbers = {1000 + number for number in range(1, 20)}
        counters = {
            (name, labels): int(value)
            for (name, labels), value in found.items()
            if name.endswith("_total") and name.startswith("tasklock")
        }
        assert set(counters.values()) == numbers
        assert counters["tasklock_messages_total", (("event", "taken_over"), ("kind", "a"))] == 1016
        assert counters["tasklock_stale_writes_total", (("model", "a"),)] == 1017
        assert counters["tasklock_message_renewals_late_total", ()] == 1018
        assert counters["tasklock_expired_total", (("kind", "a"),)] == 1003

    def test_what_an_alert_looks_at_is_there_before_it_is_first_counted(self):
        """Prometheus sees an increase only of what it has seen before."""
        assert shown()["tasklock_message_renewals_late_total", ()] == 0

    def test_a_histogram_is_cumulative_as_prometheus_wants_it(self):
        self.count("acquired", "a", 5)
        self.count("waited", "a", 1, 0, 4)
        self.count("waited", "a", 2, 1, 30)
        self.count("waited", "a", 4, 11, 9_000_000)
        found = shown()

        def bucket(bound: str) -> float:
            return found["tasklock_wait_seconds_bucket", (("kind", "a"), ("le", bound))]

        assert [bucket(bound) for bound in ("0.005", "0.025", "3600.0", "+Inf")] == [6, 8, 8, 12]
        assert found["tasklock_wait_seconds_sum", (("kind", "a"),)] == 9000.034
        assert found["tasklock_acquired_total", (("kind", "a"),)] == 12

    @pytest.mark.database
    def test_a_scrape_makes_as_many_queries_whatever_there_is(self, settings):
        settings.TASKLOCK = {"BACKEND": "django_tasklock.backends.database.DatabaseBackend"}
        made = []
        for number in (2, 30):
            for one in range(number):
                RateLimiter(f"api:{number}:{one}", "5/m").acquire()
                assert ConcurrencyLimiter(f"transcode:{number}:{one}", 1).acquire()
            assert counts.flush()
            with CaptureQueriesContext(connection) as queries:
                list(TaskLockCollector().collect())
            made.append(len(queries))
        assert len(set(made)) == 1
        assert made[0] < 40

    def test_without_the_table_the_state_is_still_shown(self, monkeypatch, caplog):
        monkeypatch.setattr(EventCount._meta, "db_table", "there_is_none")
        registry = CollectorRegistry()
        registry.register(TaskLockCollector())
        assert "tasklock_held 0.0" in generate_latest(registry).decode()
        assert "the counts could not be read" in caplog.text


@pytest.mark.django_db
class TestGauges:
    @pytest.fixture(autouse=True)
    def _memory(self, settings):
        yield from in_store("memory", settings)

    @staticmethod
    def run_of_a_sweep(ago: float, kept: int, **more: str) -> None:
        tally = {"found": kept + 3, "acted": 3, "changed": 0, "kept": kept}
        SweepEntry.objects.create(
            at=timezone.now() - timedelta(seconds=ago),
            actor="beat",
            swept=3,
            seconds=0.1,
            counts={"abandoned": tally},
            **more,
        )

    def test_only_a_whole_sweep_says_what_is_left(self):
        began = time.monotonic()
        assert acquire_task_lock("video:1")
        longest = eventually(lambda: read_gauges().longest_held)  # in seconds
        assert longest <= time.monotonic() - began + 0.01
        assert (read_gauges().stale_claims, read_gauges().last_sweep_age) == (None, None)
        self.run_of_a_sweep(900, 1)
        self.run_of_a_sweep(600, 2)
        self.run_of_a_sweep(300, 4, scope="prefix=video:")
        self.run_of_a_sweep(0, 8, problem="the store could not be asked")
        gauges = read_gauges()
        assert gauges.stale_claims == 2
        assert gauges.last_sweep_age >= 600


KEYS = {"prometheus": {"secret": "a-secret", "may": ["read"]}}


@pytest.mark.django_db
class TestView:
    @pytest.fixture(autouse=True)
    def _memory(self, settings):
        settings.ROOT_URLCONF = "django_tasklock.metrics.urls"
        yield from in_store("memory", settings, API_KEYS=KEYS)

    def test_only_for_a_key_that_may_read(self, client):
        wrong = {"Authorization": "Api-Key wrong"}
        for headers, address in (({}, "192.0.2.1"), (wrong, "192.0.2.1")):  # nobody else counts there
            assert client.get("/", headers=headers, REMOTE_ADDR=address).status_code == 401
        assert client.post("/").status_code == 405
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

    @pytest.mark.parametrize("sent", [{}, {"Authorization": "Api-Key a-secret"}], ids=["no key", "a key"])
    def test_without_any_keys_it_is_off_and_not_open(self, client, settings, sent):
        settings.TASKLOCK = {name: value for name, value in settings.TASKLOCK.items() if name != "API_KEYS"}
        answer = client.get("/", headers=sent)
        assert (answer.status_code, answer.json()["code"]) == (403, "permission_denied")
        assert b"tasklock_" not in answer.content
