"""System checks: what each finds, what it says to do, and that a sound project hears nothing."""

from __future__ import annotations

import subprocess
import sys
from copy import copy
from datetime import timedelta
from pathlib import Path

import pytest
from django.apps import apps
from django.core.checks import run_checks
from django.core.management import call_command
from django.core.management.base import SystemCheckError
from django.db import connection, models
from django.db.models import Exists, OuterRef, Q
from django.test.utils import isolate_apps

from django_tasklock import StateGuard, TaskLockError
from django_tasklock.checks import TAG
from tests.support.guards import MEMORY, no_guards
from tests.testapp.models import Note, PlainVideo, Video

BACKENDS = "django_tasklock.backends"
ELSEWHERE = "redis://127.0.0.1:1/0"
SECRET = "3q8nDkYH2rTtVb5mXw9LpZc7FsJ4aGeU"  # 32 characters


@pytest.fixture(autouse=True)
def registered():
    """No guard but those that the test registers."""
    no_guards()


@pytest.fixture(autouse=True)
def apart(settings):
    """The locks in a Redis of their own, where nobody is: no cache that could be cleared is there."""
    settings.TASKLOCK = {"LOCATION": ELSEWHERE}
    settings.CACHES = {**settings.CACHES, "default": settings.CACHES["locmem"]}


@pytest.fixture(autouse=True)
def _no_database_is_asked(request):
    """pytest-django refuses connections to a test that is not marked: no check goes over the network."""
    assert not request.node.get_closest_marker("django_db")


def found(*ids: str):
    """The findings of our checks, which must be these."""
    messages = run_checks(tags=[TAG])
    assert [message.id for message in messages] == [f"tasklock.{one}" for one in ids], messages
    return messages


class TestSettings:
    def test_nothing_to_say(self, settings):
        found()
        settings.TASKLOCK = {"LOCATION": ELSEWHERE, "TIMEOUT": 60, "LEASE": 5.5}
        found()
        settings.TASKLOCK = {"LOCATION": ELSEWHERE, "API_KEYS": {"grafana": SECRET}, "API_KEY_IN_QUERY": False}
        found()
        del settings.TASKLOCK
        found()

    @pytest.mark.parametrize(
        ("given", "what", "hint"),
        [
            ({"TIMOUT": 5}, "no setting 'TIMOUT'", "Did you mean 'TIMEOUT'?"),
            ([("TIMEOUT", 5)], "must be a dict, not list", "TASKLOCK = {...}"),
            ({"API_KEY_IN_QUERY": 1}, "TASKLOCK['API_KEY_IN_QUERY'] must be True or False, not 1", "False"),
            ({"API_KEYS": [SECRET]}, "must be a dict of names and secrets, not list", "'grafana'"),
            *[
                ({"API_KEYS": {"grafana": said}}, "TASKLOCK['API_KEYS']['grafana'] has no secret", "'grafana'")
                for said in (None, SECRET.encode(), "  ", {"may": ["read"]})
            ],
            *[
                (
                    {"API_KEYS": {"grafana": {"secret": SECRET, **may}}},
                    "['may'] must be a list of 'read' or 'all'",
                    "may",
                )
                for may in ({}, {"may": []}, {"may": "read"}, {"may": [SECRET]}, {"may": ["all", "x"]})
            ],
            (
                {"API_KEYS": {"grafana": {"secret": SECRET, "may": ["read"], SECRET: 1}}},
                "['grafana'] has a field other than 'secret' and 'may'",
                "'grafana'",
            ),
            ({"API_KEYS": {"": SECRET}}, "a name that is no text, or empty (str)", "'grafana'"),
            ({"RATE_LIMITS": "100/m"}, "TASKLOCK['RATE_LIMITS'] must be a dict, not str", "{'tavily': '100/m', ...}"),
            ({"RATE_LIMITS": {"tavily": "1/fortnight"}}, "['tavily']: rate limit 'tavily': '1/fortnight'", "'tavily'"),
            ({"RATE_LIMITS": {"tavily": {"rate": "1/s"}}}, "no option 'rate'; did you mean 'rates'?", "'tavily'"),
            ({"RATE_LIMITS": {"a:tenant:b": "1/s"}}, "must not contain ':tenant:'", "'tavily'"),
            ({"RATE_LIMITS": {"t": "10001/s"}}, "above 10,000 in a window: write a shorter window", "'tavily'"),
        ],
    )
    def test_e001(self, settings, given, what, hint):
        settings.TASKLOCK = given
        (message,) = found("E001")
        assert message.is_serious()
        assert what in message.msg
        assert hint in message.hint
        assert SECRET not in str(message)
        with pytest.raises(SystemCheckError, match=r"tasklock\.E001"):
            call_command("check")

    def test_e001_alone_says_why_tasks_cannot_be_bound(self, settings, monkeypatch):
        monkeypatch.setattr("django_tasklock.checks.guards.import_task_modules", lambda: ("TASKLOCK has no setting",))
        found("W017")
        settings.TASKLOCK = {"TIMOUT": 5}
        found("E001")

    def test_w008_a_key_that_can_be_guessed(self, settings):
        """Or whose name and secret stand in each other's place: neither is told."""
        settings.TASKLOCK = {"LOCATION": ELSEWHERE, "API_KEYS": {"grafana": SECRET[:31], "curl": SECRET}}
        (message,) = found("W008")
        assert message.msg == "TASKLOCK['API_KEYS']['grafana'] has 31 characters: it can be guessed."
        assert "secrets.token_urlsafe(32)" in message.hint
        assert SECRET[:31] not in str(message)
        settings.TASKLOCK = {"LOCATION": ELSEWHERE, "API_KEYS": {SECRET: "grafana"}}
        (message,) = found("W008")
        assert SECRET not in str(message)

    @pytest.mark.parametrize("package", ["django_tenants", "tenant_schemas"])
    def test_e008_a_schema_per_tenant_and_one_prefix(self, settings, package, monkeypatch):
        """One of the packages that have such schemas, in name only."""
        found()
        known = apps.is_installed
        monkeypatch.setattr(apps, "is_installed", lambda name: name == package or known(name))
        (message,) = found("E008")
        assert package in message.msg
        assert "docs/tenants.md" in message.hint
        settings.TASKLOCK = {**settings.TASKLOCK, "KEY_PREFIX": "os.getcwd"}
        found()

    @pytest.mark.parametrize("given", [{"LEASE": 1}, {"LEASE": timedelta(milliseconds=900), "TIMEOUT": 5}])
    def test_w006_a_lease_that_one_slow_answer_outlasts(self, settings, given):
        settings.TASKLOCK = {"LOCATION": ELSEWHERE, **given}
        (message,) = found("W006")
        assert not message.is_serious()
        assert "one slow answer" in message.msg
        assert "1.5 s or more" in message.hint


class TestBackend:
    @pytest.mark.parametrize(
        ("given", "what"),
        [
            ({"BACKEND": "nowhere.Store"}, "'nowhere.Store' cannot be imported"),
            ({"BACKEND": f"{BACKENDS}.get_backend"}, "is not a LockStore class"),
            ({"LOCATION": "nowhere"}, "neither a CACHES alias (known: 'core'"),
            ({"LOCATION": "redis://:hush@host:port/0"}, "does not lead to a Redis (ValueError)"),
            ({"LOCATION": "redis://:hush@host/locks"}, "must end with the number of a database, not with 'locks'"),
            ({"LOCATION": "rediss://:hush@host?ssl_cert_reqs=CERT_NONE"}, "CERT_NONE is Celery's spelling of none"),
            ({"LOCATION": "redis://:hush@host?sokcet_timeout=1"}, "'sokcet_timeout'"),
            ({"LOCATION": "redis+sentinel://:hush@host/a?sokcet_timeout=1"}, "'sokcet_timeout'"),
            ({"LOCATION": "redis+cluster://:hush@host?sokcet_timeout=1"}, "'sokcet_timeout'"),
            ({"BACKEND": f"{BACKENDS}.redis.RedisBackend", "LOCATION": "locmem"}, "which has no single Redis primary"),
            ({"BACKEND": f"{BACKENDS}.cache.CacheBackend", "LOCATION": "nowhere"}, "'nowhere'"),
        ],
    )
    def test_e002_no_such_store(self, settings, given, what):
        settings.TASKLOCK = given
        (message,) = found("E002")
        assert message.is_serious()
        assert what in message.msg
        assert "TASKLOCK" in message.hint
        assert "hu" not in message.msg.replace("which has no", "")  # of a password

    @pytest.mark.parametrize(
        ("alias", "what"),
        [("dummy", "stores nothing"), ("locmem", "one process only"), ("filebased", "add() is not atomic")],
    )
    def test_e003_a_cache_that_cannot_lock(self, settings, alias, what):
        settings.TASKLOCK = {"BACKEND": f"{BACKENDS}.cache.CacheBackend", "LOCATION": alias}
        (message,) = found("E003")
        assert message.is_serious()
        assert what in message.msg
        assert message.hint == "Use Redis or the database backend."

    @pytest.mark.database
    def test_w001_the_database_cache_where_it_grants_twice(self, settings):
        settings.TASKLOCK = {"BACKEND": f"{BACKENDS}.cache.CacheBackend", "LOCATION": "db"}
        if connection.vendor == "sqlite":
            found()
            return
        (message,) = found("W001")
        assert not message.is_serious()
        assert "DatabaseCache on" in message.msg
        assert message.hint == "Use the database backend instead."

    def test_w002_this_process_only(self, settings):
        settings.TASKLOCK = MEMORY
        (message,) = found("W002")
        assert not message.is_serious()
        assert "within one process only" in message.msg


def guard(**changes) -> StateGuard:
    """A guard that works for a video, but for the changes."""
    return StateGuard(**{"claim_from": ["uploading"], "claim_as": "processing", **changes})


class TestGuards:
    def test_nothing_to_say(self):
        guard(exclude=Q(hls_file__isnull=False)).register(Video)
        guard(exclude={"note__text": "taken down"}).register(Video)
        guard(exclude=Exists(Note.objects.filter(video=OuterRef("pk")))).register(Video)
        found()

    @pytest.mark.parametrize(
        ("changes", "what"),
        [
            ({"field": "state"}, "names 'state', which is no field of it"),
            ({"field": "note"}, "testapp.Video.note is no column of its own table"),
            ({"exclude": Q(hls__isnull=False)}, "cannot be asked of the database: Cannot resolve keyword 'hls'"),
        ],
        ids=str,
    )
    def test_e004_a_guard_that_the_database_cannot_judge(self, changes, what):
        guard(**changes).register(Video)
        (message,) = found("E004")
        assert message.is_serious()
        assert message.obj is Video
        assert what in message.msg

    @pytest.mark.parametrize(
        ("model", "changes", "what", "hint"),
        [
            (Video, {"field": "progress", "claim_as": 1}, "'uploading', which cannot be in the column", None),
            (
                Video,
                {"field": "progress", "claim_from": ["0"], "claim_as": 1},
                "'0', which is 0 once it is",
                "Write 0.",
            ),
            (
                Video,
                {"claim_as": "transcoding the video"},
                "longer than the column, of 20 characters",
                "Make it longer",
            ),
            (Note, {"field": "video", "claim_from": ["7"], "claim_as": 8}, "is 7 once it is in the column", "Write 7."),
        ],
        ids=str,
    )
    def test_e004_a_state_that_no_row_would_say(self, model, changes, what, hint):
        """Else the sweep and the operators would not know a claimed row for one: they compare as Python does."""
        one = guard(**changes)
        one.register(model)
        told = [message for message in run_checks(tags=[TAG]) if message.id == "tasklock.E004" and what in message.msg]
        assert len(told) == 1
        assert hint is None or hint in told[0].hint
        with pytest.raises(TaskLockError, match="is guarded with"):
            one.ensure_fits(model)

    def test_e004_an_exclusion_that_joins_another_table(self):
        """The UPDATE would come after a SELECT, or compare what it has read before it waited: not one step."""
        guard(field="text", exclude=Q(video__status="ready")).register(Note)
        message, _ = found("E004", "W003")
        assert "excludes by a joined table" in message.msg
        assert "Exists" in message.hint

    @pytest.mark.parametrize(
        ("columns", "says"),
        [
            ({"lock_token": models.UUIDField(null=True)}, "cannot hold a token"),
            ({"lock_token": models.CharField(max_length=16)}, "cannot hold a token"),
            ({"lock_epoch": models.BigIntegerField(null=True)}, "may be NULL"),
        ],
        ids=["uuid", "short", "null"],
    )
    @isolate_apps("tests.testapp")
    def test_e004_columns_that_cannot_work(self, columns, says):
        """With an epoch that may be NULL a stale write could be accepted: NULL + 1 is NULL."""
        own = {
            "lock_token": models.CharField(max_length=32, default=""),
            "lock_epoch": models.BigIntegerField(default=0),
            "status": models.CharField(max_length=20, db_index=True),
            "__module__": __name__,
            "Meta": type("Meta", (), {"app_label": "testapp"}),
        }
        guard().register(type("Reel", (models.Model,), own | {name: copy(field) for name, field in columns.items()}))
        (message,) = found("E004")
        assert says in message.msg

    def test_e004_no_such_model(self):
        for label in ("testapp.Film", "nowhere.Video", "Video"):
            no_guards()
            guard().register(label)
            (message,) = found("E004")
            assert message.is_serious()
            assert label in message.msg
            assert message.hint == "Use 'app_label.Model'."

    def test_w003_no_columns_once_for_a_model(self):
        for _ in range(2):
            guard(field="progress", claim_from=[0], claim_as=1).register("testapp.PlainVideo")
        (columns,) = found("W003")
        assert "guarded by its state alone" in columns.msg
        assert "django_tasklock.models.GuardedModel" in columns.hint
        assert not columns.is_serious()
        assert columns.obj is PlainVideo


def test_loading_the_app_asks_nothing_of_anybody():
    """Neither a database nor Redis need be there for ``django.setup()`` and the checks."""
    subprocess.run([sys.executable, "-W", "error", "-c", SETUP], cwd=ROOT, check=True, timeout=60)


ROOT = Path(__file__).parents[2]
SETUP = """
import socket

def refused(*args):
    raise AssertionError("the network was used")

socket.socket.connect = socket.create_connection = socket.getaddrinfo = refused

import django
from django.conf import settings

settings.configure(
    INSTALLED_APPS=["django.contrib.contenttypes", "django_tasklock"],
    CACHES={
        "default": {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": "redis://127.0.0.1:1/0"},
        "locks": {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": "redis://somewhere:1/1"},
        "watched": {
            "BACKEND": "django_redis.cache.RedisCache",
            "LOCATION": "redis://service/0",
            "OPTIONS": {
                "CLIENT_CLASS": "django_redis.client.SentinelClient",
                "CONNECTION_FACTORY": "django_redis.pool.SentinelConnectionFactory",
                "CONNECTION_POOL_CLASS": "redis.sentinel.SentinelConnectionPool",
                "SENTINELS": [("somewhere.else", 1)],
            },
        },
        "core": {"BACKEND": "django.core.cache.backends.redis.RedisCache", "LOCATION": "redis://127.0.0.1:1/3"},
    },
    DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": "/nonexistent/db"}},
)
django.setup()
from django.core.checks import run_checks

from django.test import override_settings

for location, ids in {
    "default": ["tasklock.W004"], "locks": [], "watched": [], "redis://somewhere:1/1": ["tasklock.W004"], "core": [],
}.items():
    with override_settings(TASKLOCK={"LOCATION": location}):
        assert [one.id for one in run_checks(tags=["tasklock"])] == ids, location
assert run_checks()  # and none of Django's own needs it
"""
