"""What happened to locks, counted."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from django_tasklock import (
    RateLimiter,
    RateLimitExceeded,
    TaskLock,
    acquire_task_lock,
    force_release_task_lock,
    metrics,
    release_task_lock,
    signals,
    task_lock_context,
)
from django_tasklock.backends import get_backend
from django_tasklock.exceptions import TaskLockAcquireError
from django_tasklock.testing import forget
from tests.support.public import forked, in_store, script
from tests.support.stores import an_ask, clear, eventually, granted

ALWAYS = {"lost", "forced", "asked", "unavailable", "claims_rejected", "claims_stale", "conflicts_skip"}


@pytest.fixture(autouse=True)
def _memory(settings) -> Iterator[str]:
    yield from in_store("memory", settings)


@pytest.fixture
def counted() -> Callable[[], dict[str, int]]:
    """What was added to the counts since the test began."""
    before = metrics.snapshot()
    return lambda: {what: number - before.get(what, 0) for what, number in metrics.snapshot().items()}


@pytest.fixture
def acquisitions() -> Iterator[None]:
    """Acquisitions are counted, too; not afterwards."""
    metrics.install(acquisitions=True)
    yield
    for counted_signal, what in metrics._ACQUISITION_EVENTS.items():
        assert counted_signal.disconnect(dispatch_uid="tasklock.metrics")
        del metrics._counts[what]


class TestCounting:
    def test_begins_when_the_apps_are_ready(self):
        assert metrics.snapshot().keys() >= ALWAYS

    def test_a_snapshot_is_a_copy(self):
        metrics.snapshot()["lost"] = 1000
        assert metrics.snapshot()["lost"] < 1000

    def test_conflicts_by_what_was_done(self, counted):
        with TaskLock("video:1"):
            forget_here = threading.Thread(target=self.meet)
            forget_here.start()
            forget_here.join()
        assert {what: number for what, number in counted().items() if number} == {
            "conflicts_skip": 2,
            "conflicts_raise": 1,
        }

    @staticmethod
    def meet():
        assert not acquire_task_lock("video:1")
        with task_lock_context("video:1", raise_on_fail=False) as acquired:
            assert not acquired
        with pytest.raises(TaskLockAcquireError), task_lock_context("video:1"):
            pass

    def test_forced_and_lost(self, counted):
        with TaskLock("video:1", lease=4) as lock:
            assert force_release_task_lock("video:1")
            assert counted()["forced"] == 1
            eventually(lambda: lock.lost)
            eventually(lambda: counted()["lost"] == 1)

    @pytest.mark.redis
    def test_a_store_that_is_down(self, counted, settings, redis_server):
        settings.TASKLOCK = {"LOCATION": redis_server.url}
        redis_server.kill()
        assert acquire_task_lock("video:1")
        assert counted()["unavailable"] == 1
        forget()

    def test_claims(self, counted):
        signals.send(signals.claim_rejected, "testapp.Video:1", model=None, pk=1, state="ready")
        for _ in range(2):
            signals.send(signals.claim_stale, "testapp.Video:1", model=None, pk=1, attempted=("status",))
        assert (counted()["claims_rejected"], counted()["claims_stale"]) == (1, 2)

    def test_an_action_that_later_versions_may_have(self, counted):
        signals.send(signals.lock_conflict, "video:1", error=None, action="coalesce")
        assert counted()["conflicts_coalesce"] == 1

    def test_from_many_threads(self, counted, monkeypatch):
        class Slow(dict):
            """Lets another thread in between a look and the write."""

            def get(self, *what):
                found = super().get(*what)
                time.sleep(0)
                return found

        monkeypatch.setattr(metrics, "_counts", Slow(metrics._counts))

        def work():
            for _ in range(500):
                signals.send(signals.lock_forced, "video:1", info=None)

        threads = [threading.Thread(target=work) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert counted()["forced"] == 4000


class TestAcquisitions:
    def test_are_not_counted_unless_asked_for(self):
        """So that a lock does not pay for signals nobody listens to."""
        assert acquire_task_lock("video:1")
        assert metrics.snapshot().keys().isdisjoint({"acquired", "released"})
        assert not signals.lock_acquired.receivers
        assert not signals.lock_released.receivers

    @pytest.mark.usefixtures("acquisitions")
    def test_are_counted_then(self, counted):
        assert acquire_task_lock("video:1")
        assert not acquire_task_lock("video:1")
        assert release_task_lock("video:1")
        with TaskLock("video:2"):
            assert counted()["acquired"] == 2
        assert (counted()["acquired"], counted()["released"], counted()["conflicts_skip"]) == (2, 2, 1)

    @pytest.mark.usefixtures("acquisitions")
    def test_installing_twice_counts_once(self, counted):
        metrics.install(acquisitions=True)
        metrics.install()
        assert acquire_task_lock("video:1")
        assert not acquire_task_lock("video:1")
        assert (counted()["acquired"], counted()["conflicts_skip"]) == (1, 1)


class TestRates:
    def test_by_limiter_and_together(self, counted):
        limiter = RateLimiter("api", "1/0.1s", tenants="1/m")
        limiter.tenant("acme").acquire()
        limiter.tenant("globex").acquire()  # its own place at once, the shared one after a while
        with pytest.raises(RateLimitExceeded):
            limiter.tenant("acme").acquire(timeout=1)
        limiter.tenant("initech").reserve().cancel()
        limiter.penalize(1)
        api, tenants = metrics.limiters()["api"], metrics.limiters()["api:tenant"]
        assert (api["granted_at_once"], api["granted_waited"], api["pushback"]) == (1, 1, 1)
        assert 0 < api["waited_ms"] < 60_000
        assert (tenants["refused"], tenants["cancelled"]) == (1, 1)
        found = counted()
        assert (found["rates_granted_at_once"], found["rates_granted_waited"], found["rates_pushback"]) == (1, 1, 1)

    def test_the_default_tenant_is_a_tenant(self, counted):
        RateLimiter("api", "5/m", tenants="2/m").acquire()
        assert metrics.limiters()["api:tenant"]["granted_at_once"] == 1
        assert counted()["rates_granted_at_once"] == 1

    def test_names_do_not_grow_for_ever(self, monkeypatch):
        monkeypatch.setattr(metrics, "MAX_LIMITERS", 2)
        for number in range(4):
            RateLimiter(f"api:{number}", "5/s").acquire()
        assert metrics.limiters().keys() == {"api:0", "api:1", "(others)"}
        assert metrics.limiters()["(others)"]["granted_at_once"] == 2

    def test_a_registry_gets_them(self):
        from prometheus_client import CollectorRegistry, generate_latest

        RateLimiter("api", "5/s").acquire()
        registry = CollectorRegistry(auto_describe=True)
        registry.register(metrics.collector())
        text = generate_latest(registry).decode()
        assert 'tasklock_rates_total{event="granted_at_once",limiter="api"} 1.0' in text
        assert 'tasklock_rates_waited_seconds_total{limiter="api"} 0.0' in text


class TestProcesses:
    def test_a_forked_worker_begins_at_zero(self):
        signals.send(signals.lock_forced, "video:1", info=None)

        def child():
            first = metrics.snapshot()
            signals.send(signals.lock_forced, "video:1", info=None)
            return first, metrics.snapshot()["forced"]

        first, then = forked(child)
        assert first.keys() >= ALWAYS
        assert set(first.values()) == {0}
        assert then == 1
        assert metrics.snapshot()["forced"] >= 1

    def test_even_if_a_thread_was_counting_at_that_moment(self):
        counting, over = threading.Event(), threading.Event()

        def count():
            with metrics._mutex:
                counting.set()
                assert over.wait(30)

        def child():
            signal.alarm(20)  # rather than wait for ever
            return metrics.snapshot()["forced"]

        thread = threading.Thread(target=count)
        thread.start()
        assert counting.wait(30)
        assert forked(child) == 0
        over.set()
        thread.join()


class TestPrometheus:
    def test_a_registry_gets_them_all(self):
        with TaskLock("video:1"):
            thread = threading.Thread(target=TestCounting.meet)
            thread.start()
            thread.join()
        from prometheus_client import CollectorRegistry, generate_latest

        registry = CollectorRegistry(auto_describe=True)
        registry.register(metrics.collector())
        text = generate_latest(registry).decode()
        counts = metrics.snapshot()
        for what in ("lost", "forced", "asked", "unavailable", "claims_rejected", "claims_stale"):
            assert f"# TYPE tasklock_{what}_total counter" in text
            assert f"tasklock_{what}_total {float(counts[what])}" in text
        assert f'tasklock_conflicts_total{{action="skip"}} {float(counts["conflicts_skip"])}' in text
        assert f'tasklock_conflicts_total{{action="raise"}} {float(counts["conflicts_raise"])}' in text

    @pytest.mark.django_db(transaction=True)
    def test_how_many_locks_there_are_at_each_scrape(self, settings):
        from prometheus_client import CollectorRegistry, generate_latest

        clear("memory")
        registry = CollectorRegistry(auto_describe=False)
        registry.register(metrics.collector(store=True))
        for number in range(3):
            granted(get_backend().acquire(an_ask(f"video:{number}", ttl=60_000 if number else 5000)))
        text = generate_latest(registry).decode()
        assert 'tasklock_locks{state="live"} 3.0' in text
        assert 'tasklock_locks{state="expiring"} 1.0' in text
        assert 'tasklock_locks{state="orphaned"} 0.0' in text
        assert "tasklock_parked 0.0" in text
        assert get_backend().remove("video:1")
        assert 'tasklock_locks{state="live"} 2.0' in generate_latest(registry).decode()

    @pytest.mark.django_db(transaction=True)
    def test_a_store_that_is_down_is_left_out(self, settings, redis_server, caplog):
        from prometheus_client import CollectorRegistry, generate_latest

        settings.TASKLOCK = {"LOCATION": redis_server.url}
        registry = CollectorRegistry(auto_describe=False)
        registry.register(metrics.collector(store=True))
        redis_server.stop()
        text = generate_latest(registry).decode()
        assert "tasklock_locks{" not in text
        assert "tasklock_parked 0.0" in text
        assert "the locks could not be counted" in caplog.text

    def test_without_it_all_else_works(self):
        code = """
import sys
sys.modules["prometheus_client"] = None
import django
django.setup()
from django_tasklock import metrics
assert metrics.snapshot()["lost"] == 0
try:
    metrics.collector()
except ImportError as error:
    print(error.name)
"""
        assert script(code, DJANGO_SETTINGS_MODULE="tests.settings").startswith("prometheus_client")
