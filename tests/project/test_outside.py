"""What people, configurations and other versions hold on to: it stays where it is, however the house is rebuilt.

A worker of the last version and one of this one run side by side during a deploy, so what they say to each other, in
tables, keys and headers, stays as well. Whoever changes a line here takes something away from somebody.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis
from django.apps import apps
from django.urls import reverse
from django.utils.module_loading import import_string

import django_tasklock
from django_tasklock import ConcurrencyLimiter, RateLimiter, TaskLock, conf, signals
from django_tasklock.backends import get_backend
from tests.support.guards import MEMORY
from tests.support.once_app import OnceApp, once_app

pytest_plugins = ["tests.support.redis_fixtures"]

ROOT = Path(django_tasklock.__file__).parents[1]
PAGES = [ROOT / "README.md", ROOT / "README.zh-Hans.md", *sorted((ROOT / "docs").rglob("*.md"))]

PATHS = [
    "django_tasklock.admin.AuditAdmin",
    "django_tasklock.admin.LockAdmin",
    "django_tasklock.admin.LockPanelMixin",
    "django_tasklock.admin.ParkedMessageAdmin",
    "django_tasklock.admin.RateLimitAdmin",
    "django_tasklock.apps.TaskLockConfig",
    "django_tasklock.backends.cache.CacheBackend",
    "django_tasklock.backends.cluster.ClusterBackend",
    "django_tasklock.backends.database.DatabaseBackend",
    "django_tasklock.backends.memory.MemoryBackend",
    "django_tasklock.backends.redis.RedisBackend",
    "django_tasklock.backends.quorum.QuorumBackend",
    "django_tasklock.backends.memory.advance",
    "django_tasklock.backends.memory.reset",
    "django_tasklock.celery.Once",
    "django_tasklock.celery.OnceTask",
    "django_tasklock.celery.ParkedInfo",
    "django_tasklock.celery.count_parked",
    "django_tasklock.celery.parked_messages",
    "django_tasklock.celery.spread",
    "django_tasklock.celery.request.Request",
    "django_tasklock.exceptions.AlreadyPublished",
    "django_tasklock.exceptions.CrashLoop",
    "django_tasklock.exceptions.TransactionOpen",
    "django_tasklock.health.plugins.DatabasePool",
    "django_tasklock.health.plugins.Locks",
    "django_tasklock.health.urls.urlpatterns",
    "django_tasklock.metrics.snapshot",
    "django_tasklock.models.AuditEntry",
    "django_tasklock.models.GuardedModel",
    "django_tasklock.models.Lock",
    "django_tasklock.models.ParkedMessage",
    "django_tasklock.models.RateLimit",
    "django_tasklock.operations.Act",
    "django_tasklock.operations.Actor",
    "django_tasklock.operations.acts",
    "django_tasklock.operations.ask_to_release",
    "django_tasklock.operations.change_limit",
    "django_tasklock.operations.count_locks",
    "django_tasklock.operations.discard_parked",
    "django_tasklock.operations.each_act",
    "django_tasklock.operations.find_awaited",
    "django_tasklock.operations.find_lock",
    "django_tasklock.operations.find_parked",
    "django_tasklock.operations.find_sweep_run",
    "django_tasklock.operations.get_limit",
    "django_tasklock.operations.get_lock",
    "django_tasklock.operations.get_permits",
    "django_tasklock.operations.last_sweep_age",
    "django_tasklock.operations.list_acts",
    "django_tasklock.operations.list_limits",
    "django_tasklock.operations.list_locks",
    "django_tasklock.operations.list_parked",
    "django_tasklock.operations.list_permits",
    "django_tasklock.operations.list_waiters",
    "django_tasklock.operations.pause_limit",
    "django_tasklock.operations.publish_parked",
    "django_tasklock.operations.release_lock",
    "django_tasklock.operations.release_permit",
    "django_tasklock.operations.requeue_parked",
    "django_tasklock.operations.reset_limit",
    "django_tasklock.operations.resume_limit",
    "django_tasklock.operations.sweep",
    "django_tasklock.operations.sweep_runs",
    "django_tasklock.rest.urls.urlpatterns",
    "django_tasklock.tasks.sweep_locks",
    "django_tasklock.testing.TaskLockTestMixin",
    "django_tasklock.testing.advance",
    "django_tasklock.testing.assert_locked",
    "django_tasklock.testing.assert_not_locked",
    "django_tasklock.testing.conformance.LapsingContract",
    "django_tasklock.testing.conformance.ListingContract",
    "django_tasklock.testing.conformance.LockContract",
    "django_tasklock.testing.conformance.PermitContract",
    "django_tasklock.testing.conformance.PermitWakingContract",
    "django_tasklock.testing.conformance.RateContract",
    "django_tasklock.testing.conformance.WakingContract",
    "django_tasklock.testing.forget",
    "django_tasklock.testing.kill_holder",
    "django_tasklock.testing.limit_reached",
    "django_tasklock.testing.lock_held",
    "django_tasklock.testing.lock_waiting",
    "django_tasklock.testing.locks_off",
    "django_tasklock.testing.lose",
    "django_tasklock.testing.lose_lock",
    "django_tasklock.testing.memory_store",
    "django_tasklock.testing.off.GrantingBackend",
    "django_tasklock.testing.overtake",
    "django_tasklock.testing.reset",
    "django_tasklock.testing.store_down",
    "django_tasklock.types.LimiterInfo",
    "django_tasklock.types.LockInfo",
    "django_tasklock.types.Released",
]

SIGNALS = [
    "claim_rejected",
    "claim_stale",
    "lock_acquired",
    "lock_asked",
    "lock_conflict",
    "lock_forced",
    "lock_lost",
    "lock_released",
    "message_promoted",
    "messages_late",
    "rate_cancelled",
    "rate_granted",
    "rate_late",
    "rate_pushback",
    "rate_refused",
    "rate_unavailable",
    "state_changed",
    "store_unavailable",
]

SETTINGS = [
    "API_KEYS",
    "API_KEY_IN_QUERY",
    "AUDIT_DAYS",
    "BACKEND",
    "HISTORY",
    "KEY_PREFIX",
    "LEASE",
    "LOCATION",
    "MESSAGE_LEASE",
    "METRICS",
    "ON_CONFLICT",
    "ON_UNAVAILABLE",
    "PREFETCH_TIMEOUT",
    "RATE_LIMITS",
    "REPLICAS",
    "TIMEOUT",
]

TABLES = {
    "tasklock_lock": "acquired_at asked_at expires_at fence hold_until holder key name token",
    "tasklock_audit": "action actor at id key name outcome reason user_id",
    "tasklock_parked": (
        "attempts changed_at crashes holder id key message mode name parked_at place problem sent state task task_id"
        " ticket"
    ),
    "tasklock_limiter": "fence key",
    "tasklock_sweep": "actor at id problem report scope seconds swept",
    "tasklock_count": "amount at event folded id kind number",
    "tasklock_hold": "at ended_at holder how id key kind",
    "tasklock_permit": "acquired_at expires_at fence hold_until holder key token",
    "tasklock_rate": "expires_at key name state used_at version",
}

CHECKS = {f"E{number:03}" for number in range(1, 9)} | {f"W{number:03}" for number in range(1, 23)} - {"W005"}

PLACES = {
    "admin:tasklock_lock_changelist": (),
    "admin:tasklock_lock_change": ("a",),
    "admin:tasklock_lock_release": ("a",),
    "admin:tasklock_lock_ask": ("a",),
    "admin:tasklock_lock_history": ("a",),
    "admin:tasklock_ratelimit_changelist": (),
    "admin:tasklock_ratelimit_change": ("a",),
    "admin:tasklock_ratelimit_reset": ("a",),
    "admin:tasklock_ratelimit_limit": ("a",),
    "admin:tasklock_ratelimit_release": ("a",),
    "admin:tasklock_lock_overview": (),
    "admin:tasklock_lock_sweep": (),
    "admin:tasklock_ratelimit_pause": ("a",),
    "admin:tasklock_ratelimit_resume": ("a",),
    "admin:tasklock_parkedmessage_changelist": (),
    "admin:tasklock_parkedmessage_change": ("a",),
    "admin:tasklock_parkedmessage_act": (),
    "admin:tasklock_auditentry_changelist": (),
    "admin:tasklock_auditentry_export": (),
}

DOORS = {
    "django_tasklock.rest.urls": {
        "locks": "locks",
        "lock": "<tasklock_name:name>/lock",
        "release-lock": "<tasklock_name:name>/release-lock",
        "ask-release": "<tasklock_name:name>/ask-release",
        "waiters": "<tasklock_name:name>/waiters",
        "limits": "limits",
        "reset-limit": "limits/<tasklock_name:name>/reset",
        "change-limit": "limits/<tasklock_name:name>/change",
        "pause-limit": "limits/<tasklock_name:name>/pause",
        "resume-limit": "limits/<tasklock_name:name>/resume",
        "limit": "limits/<tasklock_name:name>",
        "concurrency": "concurrency",
        "release-permit": "concurrency/<tasklock_name:name>/release",
        "permits": "concurrency/<tasklock_name:name>",
        "parked": "parked",
        "requeue-parked": "parked/<tasklock_name:task_id>/requeue",
        "publish-parked": "parked/<tasklock_name:task_id>/publish",
        "discard-parked": "parked/<tasklock_name:task_id>/discard",
        "parked-message": "parked/<tasklock_name:task_id>",
        "sweep": "sweep",
        "sweeps": "sweeps",
        "sweep-run": "sweeps/<tasklock_name:number>",
        "audit": "audit",
    },
    "django_tasklock.health.urls": {
        "db": "^db/?$",
        "database": "^db/(?P<alias>[^/]+)/?$",
        "locks": "^locks/?$",
    },
}


@pytest.mark.parametrize("path", PATHS)
def test_a_dotted_path_that_people_write(path: str) -> None:
    import_string(path)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_dotted_path_on_a_page(page: Path) -> None:
    for path in set(re.findall(r"django_tasklock(?:\.\w+)+", page.read_text("utf-8"))):
        try:
            __import__(path)
        except ImportError:
            import_string(path)


def test_signals() -> None:
    assert all(hasattr(getattr(signals, name), "connect") for name in SIGNALS)


def test_settings() -> None:
    assert sorted(conf.Settings.__dataclass_fields__) == SETTINGS


def test_tables() -> None:
    found: dict[str, set[str]] = {}
    for model in apps.get_app_config("tasklock").get_models():
        found.setdefault(model._meta.db_table, set()).update(field.column for field in model._meta.concrete_fields)
    assert found == {table: set(columns.split()) for table, columns in TABLES.items()}


def test_check_ids() -> None:
    """Projects silence them by their ids. One that went is given to no other check."""
    texts = [path.read_text("utf-8") for path in (ROOT / "django_tasklock").rglob("*.py")]
    found = {number for text in texts for number in re.findall(r"tasklock\.([EW]\d{3})", text)}
    assert found - {"W005"} == CHECKS


@pytest.mark.parametrize("name", PLACES)
def test_admin_addresses(settings: Any, name: str) -> None:
    settings.ROOT_URLCONF = "tests.urls"
    assert reverse(name, args=PLACES[name])


@pytest.mark.parametrize("module", DOORS)
def test_addresses_for_programs(module: str) -> None:
    patterns = import_string(f"{module}.urlpatterns")
    assert {pattern.name: str(pattern.pattern) for pattern in patterns} == DOORS[module]
    assert (
        import_string(f"{module}.app_name") == {"rest": "tasklock", "health": "tasklock-health"}[module.split(".")[1]]
    )


@pytest.mark.redis
def test_redis_keys(store: redis.Redis, name: str) -> None:
    """What another version looks for. It may have more keys, which it does not mind to miss."""
    with TaskLock(name, lease=30) as lock, ConcurrencyLimiter(f"{name}-c", 1):
        RateLimiter(f"{name}-r", "5/s").acquire()
        backend: Any = get_backend()
        backend.set_flag(name)
        backend.next_number(name, "id-1")
        backend.record_wait(name, lock.token, "api", 60_000)
        keys = {key.decode().replace(name, "NAME") for key in store.scan_iter()}
        value = json.loads(store.get(f"task_lock:{name}"))
        assert lock.token == value["token"]
    assert list(value) == ["token", "holder", "at", "fence", "until"]
    assert keys >= {
        "task_lock:NAME",
        "task_lock#index",
        "task_lock#fence",
        "task_lock#ticket",
        "task_lock#line:NAME",
        "task_lock#flag:NAME",
        "task_lock#waits:NAME",
        "task_lock#permits",
        "task_lock#permits:NAME-c",
        "task_lock#permits-by:NAME-c",
        "task_lock#rates",
        "task_lock#rate:meta:NAME-r",
        "task_lock#rate:1000000:NAME-r",
    }


class TestMessages:
    @pytest.fixture
    def app(self, settings: Any) -> Iterator[OnceApp]:
        settings.TASKLOCK = MEMORY
        with once_app() as made:
            yield made

    def test_the_header(self, app: OnceApp) -> None:
        """Its words are what the other version reads."""
        task = app.task(lambda x: x, key="a:{x}", name="outside.task")
        task.once(unique="until_finish", on_conflict="queue").delay(1)
        header = app.all()[0].headers["tasklock"]
        assert header.keys() == {"key", "once", "ticket", "unique", "at", "of"}
        assert (header["key"], header["of"][0]) == ("a:1", "outside.task")
        assert header["unique"].keys() == {"name", "handle", "until", "span"}
        assert header["once"] == {"unique": "until_finish", "on_conflict": "queue"}
