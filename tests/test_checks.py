"""System checks: what each finds, what it says to do, and that a sound project hears nothing."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from django.core import checks as django_checks
from django.core.checks import run_checks
from django.core.management import call_command
from django.core.management.base import SystemCheckError
from django.db import connection, models
from django.db.models import Exists, OuterRef, Q
from django.test.utils import isolate_apps

from django_tasklock import StateGuard, guards, model_lock
from django_tasklock.checks import TAG
from django_tasklock.models import GuardedModel
from tests.support.guards import GUARD, MEMORY
from tests.testapp.models import Note, PlainVideo, Video

BACKENDS = "django_tasklock.backends"


@pytest.fixture(autouse=True)
def registered(monkeypatch):
    """No guard but those that the test registers."""
    monkeypatch.setattr(guards, "_registered", [])


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
        settings.TASKLOCK = {"LOCATION": "redis://127.0.0.1:1/0", "TIMEOUT": 60, "LEASE": 5.5}
        found()
        del settings.TASKLOCK
        found()

    @pytest.mark.parametrize(
        ("given", "what", "hint"),
        [
            ({"TIMOUT": 5}, "no setting 'TIMOUT'", "Did you mean 'TIMEOUT'?"),
            ({"lease": 5}, "no setting 'lease'", "Did you mean 'LEASE'?"),
            ({"TIMEOUT": "5"}, "TASKLOCK['TIMEOUT'] must be a positive number", "3600"),
            ({"LEASE": 0}, "TASKLOCK['LEASE'] must be a positive number", "60"),
            ({"TIMEOUT": 10, "LEASE": 20}, "is longer than", "shorter"),
            ({"ON_CONFLICT": "ignore"}, "must be one of 'skip'", "'skip'"),
            ({"ON_UNAVAILABLE": None}, "must be one of 'run'", "'run'"),
            ({"KEY_PREFIX": "locks"}, "end with a colon", "task_lock:"),
            ({"BACKEND": 5}, "must be a non-empty text", "None"),
            ([("TIMEOUT", 5)], "must be a dict, not list", "TASKLOCK = {...}"),
        ],
    )
    def test_e001(self, settings, given, what, hint):
        settings.TASKLOCK = given
        (message,) = found("E001")
        assert message.is_serious()
        assert what in message.msg
        assert hint in message.hint

    def test_every_mistake_is_found_at_once(self, settings):
        settings.TASKLOCK = {"TIMOUT": 5, "LEASE": "x", "ON_CONFLICT": "y"}
        found("E001", "E001", "E001")

    def test_manage_py_check_fails(self, settings):
        settings.TASKLOCK = {"TIMOUT": 5}
        with pytest.raises(SystemCheckError, match=r"tasklock\.E001.*TIMOUT"):
            call_command("check")


class TestBackend:
    @pytest.mark.parametrize(
        ("given", "what"),
        [
            ({"BACKEND": "nowhere.Store"}, "'nowhere.Store' cannot be imported"),
            ({"BACKEND": f"{BACKENDS}.redis.Redis"}, "cannot be imported"),
            ({"BACKEND": f"{BACKENDS}.get_backend"}, "is not a Backend class"),
            ({"LOCATION": "nowhere"}, "neither a CACHES alias (known: 'core'"),
            ({"BACKEND": f"{BACKENDS}.cache.CacheBackend", "LOCATION": "nowhere"}, "'nowhere'"),
        ],
    )
    def test_e002_no_such_store(self, settings, given, what):
        settings.TASKLOCK = given
        (message,) = found("E002")
        assert message.is_serious()
        assert what in message.msg
        assert "TASKLOCK" in message.hint

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

    @pytest.mark.parametrize("alias", ["default", "core"])
    def test_a_cache_that_can_lock(self, settings, alias):
        settings.TASKLOCK = {"BACKEND": f"{BACKENDS}.cache.CacheBackend", "LOCATION": alias}
        found()

    def test_w002_this_process_only(self, settings):
        settings.TASKLOCK = MEMORY
        (message,) = found("W002")
        assert not message.is_serious()
        assert "within one process only" in message.msg

    @pytest.mark.parametrize("alias", ["locmem", "dummy", "filebased", "db"])
    def test_a_cache_that_is_not_redis_means_the_database(self, settings, alias):
        settings.TASKLOCK = {"LOCATION": alias}
        found()

    def test_a_mistake_in_the_settings_is_said_once(self, settings):
        settings.TASKLOCK = {"BACKEND": "nowhere.Store", "TIMOUT": 5}
        found("E001")


def guard(**changes) -> StateGuard:
    """A guard that works for a video, but for the changes."""
    return StateGuard(**{"claim_from": ["uploading"], "claim_as": "processing", **changes})


class TestGuards:
    def test_nothing_to_say(self):
        guard(exclude=Q(hls_file__isnull=False)).register(Video)
        guard(exclude={"note__text": "taken down"}).register(Video)
        guard(exclude=Exists(Note.objects.filter(video=OuterRef("pk")))).register(Video)
        guard(field="progress", claim_from=[0], claim_as=1).register("testapp.Video")
        found()

    def test_a_decorator_registers_its_guard(self):
        @model_lock("testapp.Film", "film:{pk}", guard=GUARD)
        def work(pk):
            pass

        (message,) = found("E004")
        assert "'testapp.Film'" in message.msg

    @pytest.mark.parametrize("label", ["testapp.Film", "nowhere.Video", "Video", "a.b.c"])
    def test_e004_no_such_model(self, label):
        guard().register(label)
        (message,) = found("E004")
        assert message.is_serious()
        assert label in message.msg
        assert message.hint == "Use 'app_label.Model'."

    @pytest.mark.parametrize(
        ("changes", "what"),
        [
            ({"field": "state"}, "names 'state', which is no field of it"),
            ({"field": "note"}, "testapp.Video.note is no column of its own table"),
            ({"exclude": Q(hls__isnull=False)}, "cannot be asked of the database: Cannot resolve keyword 'hls'"),
            ({"exclude": {"progress__like": 1}}, "cannot be asked of the database"),
            ({"field": "progress"}, "cannot be asked of the database: Field 'progress' expected a number"),
        ],
        ids=str,
    )
    def test_e004_a_guard_that_the_database_cannot_judge(self, changes, what):
        guard(**changes).register(Video)
        (message,) = found("E004")
        assert message.is_serious()
        assert message.obj is Video
        assert what in message.msg

    def test_e004_an_exclusion_that_joins_another_table(self):
        """The UPDATE would come after a SELECT, or compare what it has read before it waited: not one step."""
        guard(field="text", exclude=Q(video__status="ready")).register(Note)
        message, _ = found("E004", "W003")
        assert "excludes by a joined table" in message.msg
        assert "Exists" in message.hint

    @isolate_apps("tests.testapp")
    def test_e004_an_inherited_column(self):
        class Film(Video):
            minutes = models.IntegerField()

            class Meta:
                app_label = "testapp"

        guard().register(Film)
        messages = found("E004", "E004", "E004")
        assert [message.msg.partition(" ")[0] for message in messages] == [
            f"testapp.Film.{name}" for name in ("status", "lock_token", "lock_epoch")
        ]
        assert all(message.hint == "Guard the model whose table has the column." for message in messages)

    @isolate_apps("tests.testapp")
    def test_an_abstract_base_and_a_proxy_are_no_such_thing(self):
        class Recorded(GuardedModel):
            status = models.CharField(max_length=20)

            class Meta:
                abstract = True
                app_label = "testapp"

        class Concert(Recorded):
            class Meta:
                app_label = "testapp"

        class Short(Video):
            class Meta:
                proxy = True
                app_label = "testapp"

        guard().register(Concert)
        guard().register(Short)
        found()

    def test_w003_a_model_without_the_columns_once_for_each(self):
        guard().register(PlainVideo)
        guard().register("testapp.PlainVideo")
        (message,) = found("W003")
        assert not message.is_serious()
        assert message.obj is PlainVideo
        assert "guarded by its state alone" in message.msg
        assert "django_tasklock.models.GuardedModel" in message.hint


def test_all_are_registered_under_one_tag():
    ours = [check for check in django_checks.registry.registry.get_checks() if TAG in getattr(check, "tags", ())]
    assert sorted(check.__name__ for check in ours) == ["check_backend", "check_guards", "check_settings"]


def test_loading_the_app_asks_nothing_of_anybody():
    """Neither a database nor Redis need be there for ``django.setup()`` and the checks."""
    subprocess.run([sys.executable, "-W", "error", "-c", SETUP], cwd=ROOT, check=True, timeout=60)


ROOT = Path(__file__).parent.parent
SETUP = """
import socket

def refused(*args):
    raise AssertionError("the network was used")

socket.socket.connect = socket.create_connection = socket.getaddrinfo = refused

import django
from django.conf import settings

settings.configure(
    INSTALLED_APPS=["django.contrib.contenttypes", "django_tasklock"],
    CACHES={"default": {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": "redis://127.0.0.1:1/0"}},
    DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": "/nonexistent/db"}},
)
django.setup()
from django.core.checks import run_checks

assert run_checks(tags=["tasklock"]) == []
"""
