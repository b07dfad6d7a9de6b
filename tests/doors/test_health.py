"""``health/db`` and ``health/locks``: what they say, when that is 503, what it costs, and what is kept secret."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from contextlib import ExitStack
from importlib.util import find_spec

import pytest
import redis
from django.core.handlers.base import BaseHandler
from django.db import connection, connections
from django.test import AsyncClient, Client
from django.urls import include, path

from django_tasklock import TaskLock, operations
from django_tasklock.backends import get_backend
from django_tasklock.conf import QUORUM
from django_tasklock.db.pools import figures
from django_tasklock.guards.guard import Guarded
from django_tasklock.health import database, probe as probes, store, views
from django_tasklock.health.probe import Probe
from django_tasklock.locks.heartbeat import heartbeat
from django_tasklock.types import Condition, monotonic
from tests.support import quorum
from tests.support.database_pool import needs_pool, pooled
from tests.support.guards import MEMORY, ONCE, elsewhere, only_guards
from tests.support.proxy import Proxy
from tests.support.stores import eventually
from tests.testapp.models import Video

urlpatterns = [path("health/", include("django_tasklock.health.urls"))]

PATIENCE = 2.0


@pytest.fixture(autouse=True)
def _address(settings):
    settings.ROOT_URLCONF = __name__


def forget():
    """Ask anew, instead of giving what is fresh."""
    database.forget()
    store.forget()


@pytest.fixture
def client():
    forget()
    return Client(raise_request_exception=False)


def took(call):
    began = time.monotonic()
    answer = call()
    return answer, time.monotonic() - began


@pytest.mark.database
@pytest.mark.django_db(transaction=True)
class TestDb:
    def test_healthy(self, client):
        connection.close()
        eventually(lambda: figures("default").checked_out == 0)
        response = client.get("/health/db")
        assert response.status_code == 200
        assert response["Content-Type"] == "application/json"
        assert "no-store" in response["Cache-Control"]
        said = response.json()
        assert said["status"] == "healthy"
        facts = said["databases"]["default"]
        assert set(facts) == {"reachable", "vendor", "latency_ms", "pool"}
        assert (facts["reachable"], facts["vendor"]) == (True, connection.vendor)
        names = {"pool_size", "checked_out", "overflow", "checked_in", "invalid", "max_size", "waiting"}
        assert said["pool"] == facts["pool"] == {**dict.fromkeys(names), "checked_out": 0}

    def test_a_pool_with_none_to_spare_is_unhealthy_in_time(self, client):
        needs_pool()
        with pooled(min_size=1, max_size=1, timeout=5):
            go_on, opened = threading.Event(), threading.Event()

            def keeps_it():
                Video.objects.count()
                opened.set()
                go_on.wait(30)

            other = threading.Thread(target=lambda: elsewhere(keeps_it))
            other.start()
            assert opened.wait(30)
            try:
                response, seconds = took(lambda: client.get("/health/db"))
                assert client.get("/health/db").json()["pool"]["waiting"] == 1
            finally:
                go_on.set()
                other.join(30)
                database.get_probe("default").result(10)
        assert response.status_code == 503
        assert seconds < PATIENCE + 3
        assert response.json()["pool"]["checked_out"] == 1

    def test_down(self, client, monkeypatch, caplog):
        def refused(self, params):
            raise self.Database.OperationalError("password=hunter2 at db.internal was refused")

        connection.close()
        monkeypatch.setattr(type(connections["default"]), "get_new_connection", refused)
        response = client.get("/health/db")
        assert response.status_code == 503
        assert response.json()["status"] == "unhealthy"
        assert response.json()["databases"]["default"]["reachable"] is False
        assert "hunter2" not in response.content.decode()
        assert "internal" not in response.content.decode()
        assert "health: health-default cannot be asked" in caplog.text

    def test_hanging_it_answers_in_time_and_with_one_thread(self, monkeypatch):
        go_on, asked = threading.Event(), []
        plain = type(connections["default"]).get_new_connection

        def hangs(self, params):
            asked.append(threading.get_ident())
            go_on.wait(30)
            return plain(self, params)

        connection.close()
        monkeypatch.setattr(type(connections["default"]), "get_new_connection", hangs)
        try:
            forget()
            for _ in range(2):
                found, seconds = took(lambda: database.check_databases("default", timeout=0.2))
                assert found["default"]["reachable"] is False
                assert seconds < 10  # it hangs for thirty
            assert len(asked) == 1
        finally:
            go_on.set()
            database.get_probe("default").result(30)

    def test_in_no_transaction_and_without_a_login(self, client, settings, monkeypatch):
        monkeypatch.setitem(connection.settings_dict, "ATOMIC_REQUESTS", True)
        settings.MIDDLEWARE = [*settings.MIDDLEWARE, "django.contrib.auth.middleware.LoginRequiredMiddleware"]
        connection.close()
        client = Client()
        assert client.get("/health/db").status_code == 200
        assert client.get("/health/locks").status_code in (200, 503)
        assert Client(enforce_csrf_checks=True).post("/health/db").status_code == 405
        assert connection.connection is None

    def test_in_no_transaction_of_another_database(self, monkeypatch):
        """That may be down, which is to be said."""
        with monkeypatch.context() as patched:
            patched.setitem(connections.settings, "another", {"ATOMIC_REQUESTS": True})
            view = views._public(lambda request: None)
            assert BaseHandler().make_view_atomic(view) is view


class TestLocks:
    @pytest.mark.redis
    def test_healthy(self, client):
        with TaskLock("top-secret-name", timeout=100) as lock:
            response = client.get("/health/locks")
            said = response.json()
            assert response.status_code == 200
            assert "no-store" in response["Cache-Control"]
            assert (said["status"], said["warnings"]) == ("healthy", [])
            assert said["heartbeat"] == {"alive": True, "leases": len(heartbeat), "late_seconds": 0.0}
            assert said["heartbeat"]["leases"] >= 1
            head = client.head("/health/locks/")
            assert (head.status_code, head.content) == (200, b"")
            assert client.post("/health/locks").status_code == 405
            secrets = ("top-secret-name", lock.token, str(get_backend().location), "127.0.0.1")
            assert not [secret for secret in secrets if secret in response.content.decode()]
        facts = said["store"]
        assert set(facts) == {"reachable", "backend", "latency_ms", "clock_difference_ms", "eviction_policy"}
        assert (facts["reachable"], facts["backend"], facts["eviction_policy"]) == (True, "redis", "noeviction")
        assert facts["latency_ms"] > 0

    @pytest.mark.django_db(transaction=True)
    def test_rows_are_guarded_and_no_sweep_runs(self, client, settings):
        settings.TASKLOCK = MEMORY
        with only_guards([Guarded(Video, ONCE, "video", "pk")]):
            response = client.get("/health/locks")
            assert response.status_code == 200
            assert ["no complete sweep" in warning for warning in response.json()["warnings"]] == [True]
            operations.sweep(pause=0)
            forget()
            assert client.get("/health/locks").json()["warnings"] == []

    @pytest.mark.redis
    def test_a_store_that_may_evict_and_one_that_does_not_say(self, client, settings, redis_server):
        settings.TASKLOCK = {"LOCATION": redis_server.url}
        plain = redis.Redis.from_url(redis_server.url)
        plain.config_set("maxmemory-policy", "allkeys-lru")
        response = client.get("/health/locks")
        assert response.status_code == 200
        assert response.json()["store"]["eviction_policy"] == "allkeys-lru"
        assert ["evict" in warning for warning in response.json()["warnings"]] == [True]
        plain.execute_command(
            "ACL", "SETUSER", "default", "-@all", "+@read", "+@write", "+@scripting", "+@connection", "+time"
        )
        forget()
        response = client.get("/health/locks")
        assert response.status_code == 200
        assert response.json()["store"]["eviction_policy"] == ""
        assert response.json()["warnings"] == []
        plain.close()

    @pytest.mark.redis
    def test_down_and_hanging(self, client, settings, redis_server):
        with Proxy(redis_server.url) as proxy:
            settings.TASKLOCK = {"LOCATION": proxy.url}
            assert client.get("/health/locks").status_code == 200
            for trouble in (proxy.hang, proxy.refuse):
                proxy.heal()
                trouble()
                forget()
                response, seconds = took(lambda: client.get("/health/locks"))
                assert response.status_code == 503
                assert response.json()["store"] == {"reachable": False}
                assert seconds < PATIENCE + 3
            proxy.heal()
            forget()
            eventually(lambda: client.get("/health/locks").status_code == 200)

    def test_leases_that_nobody_renews_and_clocks_that_differ(self, client, settings, monkeypatch):
        settings.TASKLOCK = MEMORY
        with TaskLock("a", timeout=100, lease=3) as lock:
            assert client.get("/health/locks").status_code == 200
            hold = lock.lease
            hold.renew_at = monotonic() - 1.5
            response = client.get("/health/locks")
            hold.renew_at = monotonic() + 1
        assert response.status_code == 503
        assert response.json()["heartbeat"]["late_seconds"] >= 1.5
        monkeypatch.setattr(type(heartbeat), "alive", property(lambda self: False))
        with TaskLock("a", timeout=100):
            response = client.get("/health/locks")
            assert (response.status_code, response.json()["heartbeat"]["alive"]) == (503, False)
        response = client.get("/health/locks")
        assert (response.status_code, response.json()["heartbeat"]["alive"]) == (200, None)
        forget()
        monkeypatch.setattr(type(get_backend()), "condition", lambda self: Condition(0.5, -7.0, "noeviction"))
        said = client.get("/health/locks").json()
        assert (said["status"], said["store"]["clock_difference_ms"]) == ("healthy", -7000)
        assert said["warnings"] == ["the clock of this machine differs from the store's"]


@pytest.mark.redis
class TestInstances:
    """Of a majority it is said what each instance does: whether it answers, and votes."""

    @pytest.fixture
    def proxies(self, settings):
        quorum.clear(3)
        with ExitStack() as stack:
            proxies = [stack.enter_context(Proxy(server.url)) for server in quorum.servers(3)]
            settings.TASKLOCK = {"BACKEND": QUORUM, "LOCATION": [proxy.url for proxy in proxies]}
            yield proxies

    @staticmethod
    def asked(client):
        forget()
        response = client.get("/health/locks")
        text = response.content.decode()
        assert "127.0.0.1" not in text
        return response.status_code, response.json()["store"].get("instances"), response.json()["warnings"]

    def test_each_of_them(self, client, proxies):
        with TaskLock("video:42", lease=30):
            votes, silent = {"reachable": True, "abstains_seconds": 0.0}, {"reachable": False, "abstains_seconds": None}
            eventually(lambda: self.asked(client) == (200, [votes] * 3, []))
            proxies[1].refuse()
            warning = "2 of 3 instances of the store answer"
            eventually(lambda: self.asked(client) == (200, [votes, silent, votes], [warning]))
            proxies[2].refuse()
            warning = "1 of 3 instances of the store answer"
            eventually(lambda: self.asked(client) == (503, [votes, silent, silent], [warning]))
            for proxy in proxies:
                proxy.heal()
            eventually(lambda: self.asked(client) == (200, [votes] * 3, []))


class TestProbe:
    def test_concurrent_requests_share_one_probe_and_its_answer_ages(self, monkeypatch):
        go_on, asked = threading.Event(), []
        probe = Probe(lambda: (asked.append(1), go_on.wait(30)), "test")
        answers = [probe.start() for _ in range(5)]
        go_on.set()
        assert len({id(answer.result(30)) for answer in answers}) == 1
        assert probe.result() == answers[0].result()
        assert len(asked) == 1
        monkeypatch.setattr(probes, "MAX_AGE", 0.0)
        probe.forget()  # the one that is there is fresh for longer
        probe.result()
        probe.result()
        assert len(asked) == 3


@pytest.mark.django_db(transaction=True)
class TestPlugins:
    @pytest.fixture(autouse=True)
    def _plugins(self, settings):
        if find_spec("health_check") is None:
            missing = pytest.fail if os.environ.get("CI") == "true" else pytest.skip
            missing("django-health-check is not installed: it is in the extra 'test'")
        settings.TASKLOCK = MEMORY
        settings.INSTALLED_APPS = [*settings.INSTALLED_APPS, "health_check"]
        forget()

    def test_in_its_view(self, settings, monkeypatch):
        from health_check.views import HealthCheckView

        from django_tasklock.health.plugins import Locks

        checks = ["django_tasklock.health.plugins.Locks"]
        urls = type("urls", (), {"urlpatterns": [path("ht/", HealthCheckView.as_view(checks=checks))]})
        settings.ROOT_URLCONF = urls
        response = asyncio.run(AsyncClient().get("/ht/?format=json"))
        assert response.status_code == 200
        assert response.json() == {"Locks()": "OK"}

        def error(**options):
            forget()
            found = asyncio.run(Locks(**options).get_result()).error
            return found and str(found)

        backend = type(get_backend())
        monkeypatch.setattr(backend, "condition", lambda self: Condition(0.5, 0.0, "allkeys-lru"))
        assert error() is None
        assert error(strict=True).startswith("Warning: the store may evict locks")

        def down(self):
            raise ConnectionError("hunter2")

        monkeypatch.setattr(backend, "condition", down)
        assert error() == "Unavailable: the lock store does not answer"
