"""``check --deploy``: what servers are asked, and that nothing but that asks them."""

from __future__ import annotations

import secrets
from datetime import timedelta

import pytest
import redis
from django.core.checks import run_checks
from django.db import connection
from django.utils import timezone

from django_tasklock import StateGuard, operations, task_lock
from django_tasklock.celery import OnceTask
from django_tasklock.celery.task_modules import import_task_modules
from django_tasklock.checks import TAG
from django_tasklock.decorators import locks as decorators
from django_tasklock.guards.guard import Guarded
from django_tasklock.models import LockRow, SweepEntry
from tests.support.dropping import unreachable
from tests.support.guards import MEMORY, ONCE, no_guards, only_guards
from tests.testapp.models import Video

pytestmark = pytest.mark.django_db(transaction=True)

DATABASE = {"BACKEND": "django_tasklock.backends.database.DatabaseBackend"}
CACHE = "django_tasklock.backends.cache.CacheBackend"
COMMANDS = ("+@read", "+@write", "+@scripting", "+@pubsub", "+@connection", "+time")
LEAST = ("~task_lock:*", "~task_lock#*", "&task_lock#*", *COMMANDS)


@pytest.fixture(autouse=True)
def nothing_else(settings, monkeypatch):
    """No guard, no lock and no task but those of the test."""
    import_task_modules()  # once in a process: what they register would count as the test's
    settings.CACHES = {"default": settings.CACHES["locmem"]}
    no_guards()
    monkeypatch.setattr(decorators, "_undecided", type(decorators._undecided)())
    monkeypatch.setattr("django_tasklock.checks.tasks.acknowledged_early", list)  # of tasks that others made


def found(*ids: str):
    """The findings of our checks before a deployment, which must be these."""
    messages = sorted(run_checks(tags=[TAG], include_deployment_checks=True), key=lambda message: message.id)
    assert [message.id for message in messages] == [f"tasklock.{one}" for one in ids], messages
    for message in messages:  # a sentence, and what to do
        assert "Traceback" not in str(message)
        assert "\n" not in message.msg
        assert message.hint
    return messages


@pytest.mark.redis
class TestRedis:
    @pytest.fixture
    def running(self, redis_server, settings):
        """A server of this test's own; the locks are in it."""
        settings.TASKLOCK = {"LOCATION": redis_server.url}
        with redis.Redis.from_url(redis_server.url) as client:
            yield client

    @pytest.fixture
    def user(self, running, redis_server, settings):
        """``user(*rules)``: the locks' user of it."""

        def user(*rules: str) -> None:
            who, password = "locks", secrets.token_hex(8)
            running.execute_command("ACL", "SETUSER", who, "reset", "resetchannels", "on", f">{password}", *rules)
            settings.TASKLOCK = {"LOCATION": f"redis://{who}:{password}@127.0.0.1:{redis_server.port}/0"}

        return user

    def test_nothing_to_say_and_nothing_left(self, running):
        found()
        assert running.keys("*") == [b"task_lock#fence"]

    @pytest.mark.parametrize("policy", ["allkeys-lru", "allkeys-random", "volatile-lru", "volatile-ttl"])
    def test_w013_a_full_memory_drops_locks(self, running, policy):
        """Gold standard 8.33."""
        running.config_set("maxmemory-policy", policy)
        (message,) = found("W013")
        assert not message.is_serious()
        assert f"maxmemory-policy {policy}" in message.msg
        assert "maxmemory-policy noeviction" in message.hint

    def test_the_least_rights(self, user):
        """Without INFO nobody knows the policy."""
        user(*LEAST)
        found()

    @pytest.mark.parametrize("missing", ["-@scripting", "-set", "-zadd", "-time", "resetkeys"])
    def test_e005_rights_that_are_missing(self, user, missing):
        user(*LEAST, "+info", missing)
        (message,) = found("E005")
        assert message.is_serious()
        assert "does not let us lock: Redis refused" in message.msg

    def test_e005_a_wrong_password(self, user, settings):
        user(*LEAST)
        url = settings.TASKLOCK["LOCATION"]
        settings.TASKLOCK = {"LOCATION": url.replace("@", "sesame@")}
        (message,) = found("E005")
        assert "Authentication" in message.msg
        assert "sesame" not in message.msg

    def test_w010_an_unreachable_redis(self, redis_server, running):
        redis_server.stop()
        (message,) = found("W010")
        assert not message.is_serious()
        assert f"127.0.0.1:{redis_server.port}" in message.msg
        assert "ON_UNAVAILABLE" in message.hint

    def test_a_check_without_deploy_makes_no_connection(self, running):
        before = running.info("stats")["total_connections_received"]
        running.config_set("maxmemory-policy", "allkeys-lru")
        assert run_checks(tags=[TAG]) == []
        assert running.info("stats")["total_connections_received"] == before


@pytest.mark.database
class TestTables:
    @pytest.fixture(autouse=True)
    def _in_the_database(self, settings):
        settings.TASKLOCK = DATABASE

    def test_w011_no_migration_has_run(self, monkeypatch):
        monkeypatch.setattr(LockRow._meta, "db_table", "tasklock_nowhere")
        (message,) = found("W011")
        assert not message.is_serious()
        assert message.msg == "Missing in the database: table tasklock_nowhere."
        assert message.hint == "Run: python manage.py migrate tasklock"

    def test_w011_the_last_migration_has_not(self, monkeypatch):
        monkeypatch.setattr(LockRow._meta.get_field("fence"), "column", "newer")
        (message,) = found("W011")
        assert message.msg == "Missing in the database: column tasklock_lock.newer."


class TestNoDatabase:
    @pytest.mark.parametrize(
        ("says", "id", "what"),
        [
            ("connection refused\n\tIs the server running?", "W010", "cannot be reached"),
            ('FATAL:  database "a" does not exist', "E005", "does not let us lock"),
        ],
    )
    def test_w010_and_e005(self, settings, says, id, what):
        settings.TASKLOCK = DATABASE
        connection.close()
        with unreachable(10, says):
            (message,) = found(id)
        assert f"The database 'default', where the locks are, {what}" in message.msg
        assert message.msg.endswith(" ".join(says.split()))


class TestUndecided:
    @pytest.fixture(autouse=True)
    def _in_memory(self, settings):
        settings.TASKLOCK = MEMORY

    def test_w015_runs_without_its_lock(self):
        @task_lock("report:{day}")
        def report(day): ...

        _, message = found("W002", "W015")
        assert not message.is_serious()
        assert f"{__name__}.{report.__qualname__}." in message.msg
        assert "on_unavailable='raise'" in message.hint
        assert run_checks(tags=[TAG], include_deployment_checks=False)[1:] == []

    @pytest.mark.parametrize("policy", ["run", "raise", "skip"])
    def test_a_decision_is_a_decision(self, policy, settings):
        @task_lock("report", on_unavailable=policy)
        def report(): ...

        found("W002")

    @pytest.mark.parametrize("policy", ["raise", "skip"])
    def test_so_is_the_setting(self, policy, settings):
        @task_lock("report")
        def report(): ...

        settings.TASKLOCK = {**MEMORY, "ON_UNAVAILABLE": policy}
        found("W002")

    def test_w015_of_tasks(self, monkeypatch):
        from celery import Celery, _state

        monkeypatch.setattr(_state, "_on_app_finalizers", set())  # other tests' tasks, which every new app is given
        app = Celery("checks", set_as_current=False)
        guard = StateGuard(claim_from=["uploading"], claim_as="processing")

        @app.task(base=OnceTask, name="undecided")
        def undecided(day): ...

        @app.task(base=OnceTask, name="decided", on_unavailable="raise")
        def decided(day): ...

        @app.task(base=OnceTask, name="guarded", model=Video, guard=guard, pk="pk")
        def guarded(pk): ...

        app.finalize()
        _, message, _ = found("W002", "W015", "W025")
        assert message.msg.endswith("no guarded row refuses the second: undecided.")


@pytest.mark.usefixtures("_swept")
class TestSweeps:
    @pytest.fixture
    def _swept(self, settings):
        settings.TASKLOCK = MEMORY

    def test_w025_rows_are_guarded_and_no_sweep_runs(self):
        found("W002")
        with only_guards([Guarded(Video, ONCE, "video", "pk")]):
            _, message = found("W002", "W025")
            assert "none is recorded" in message.msg
            operations.sweep(prefix="video:", pause=0)
            found("W002", "W025")
            operations.sweep(pause=0)
            found("W002")
            SweepEntry.objects.update(at=timezone.now() - timedelta(minutes=16))
            assert "16 minutes ago" in found("W002", "W025")[1].msg
