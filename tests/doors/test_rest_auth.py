"""Who may do what over HTTP: keys, users, nobody; and what is never told to anybody."""

from __future__ import annotations

import base64
import logging
import time

import pytest
from django.contrib.admin.models import LogEntry
from django.core.cache import caches
from django.core.exceptions import ImproperlyConfigured

from django_tasklock.models import AuditEntry
from django_tasklock.rest.access import Throttle
from tests.support.guards import held
from tests.support.rest import KEY, OTHER_KEY, PREFIX, RATES, Api, problem, url

pytest_plugins = ["tests.support.redis_fixtures", "tests.support.rest_fixtures"]
pytestmark = pytest.mark.django_db

BOTH = {"view_lock", "release_lock"}
NEEDS = {"locks": {"view_lock"}, "lock": {"view_lock"}, "ask-release": BOTH, "release-lock": BOTH}  # as in the admin


def where(end, name):
    """The path of an end point."""
    return PREFIX + "locks" if end == "locks" else url(name, end)


def basic(user):
    """As ``curl -u`` sends it."""
    return {"authorization": "Basic " + base64.b64encode(f"{user.username}:secret".encode()).decode()}


class TestWhoMayDoWhat:
    """Every kind of caller."""

    CALLERS = {  # kind: (known, may, needs a CSRF token that it does not send)
        "nobody": (False, set(), False),
        "a key that is none": (False, set(), False),
        "a key": (True, BOTH, False),
        "a user who may view": (True, {"view_lock"}, False),
        "a user who may release": (True, {"release_lock"}, False),
        "a user who may do both": (True, BOTH, False),
        "staff": (True, set(), False),
        "an inactive superuser": (False, set(), False),
        "a session": (True, BOTH, False),
        "a session without CSRF token": (True, BOTH, True),
        "a key beside a session": (True, BOTH, False),
        "a wrong key beside a session": (False, set(), False),
    }

    def client(self, kind, user):
        if kind == "nobody":
            return Api(enforce_csrf_checks=True)
        if kind in ("a key", "a key that is none"):
            return Api(enforce_csrf_checks=True, headers={"x-api-key": KEY if kind == "a key" else KEY + "x"})
        may = self.CALLERS[kind][1] if "superuser" not in kind else ()
        may = BOTH if "session" in kind else may
        more = {"is_staff": kind == "staff", "is_superuser": "superuser" in kind, "is_active": "inactive" not in kind}
        who = user(*may, **more)
        if "session" not in kind:
            return Api(enforce_csrf_checks=True, headers=basic(who))
        client = Api(enforce_csrf_checks=True)
        client.force_login(who)
        if kind == "a session":
            client.cookies["csrftoken"] = client.defaults["HTTP_X_CSRFTOKEN"] = "a" * 32
        if "key" in kind:
            client.defaults["HTTP_AUTHORIZATION"] = f"Api-Key {'not ' if 'wrong' in kind else ''}{KEY}"
        return client

    @pytest.mark.parametrize("kind", CALLERS)
    def test_matrix(self, rest, user, lock_up, name, kind):
        """That each end point asks for its permissions, and acts by its own method only: ``test_rest_table``."""
        known, may, without_token = self.CALLERS[kind]
        client, lock, seen = self.client(kind, user), lock_up(name), {}
        for end, needs in NEEDS.items():
            acts = end not in ("locks", "lock")
            refused = 403 if (without_token and acts) or not may >= needs else 200
            response = getattr(client, "post" if acts else "get")(where(end, name))
            assert response.status_code == (refused if known else 401), (end, response.content)
            assert lock.token not in response.content.decode() + str(response.headers)
            assert KEY not in response.content.decode() + str(response.headers)
            assert ("WWW-Authenticate" in response) is not known
            if acts and response.status_code == 200:
                seen[end] = response.json()["outcome"]
        released = known and may >= BOTH and not without_token
        assert seen == ({"ask-release": "asked", "release-lock": "released"} if released else {})
        assert held(name) is not released

    def test_what_a_user_did_is_in_djangos_log_too(self, rest, user, lock_up, name):
        who = user("view_lock", "release_lock")
        lock_up(name)
        assert Api(headers=basic(who)).post(url(name, "release-lock"), {"reason": "why"}).status_code == 200
        entry = AuditEntry.objects.get(name=name)
        assert (entry.actor, entry.user_id, entry.reason) == (who.username, str(who.pk), "why")
        assert LogEntry.objects.get(user=who).object_id == name


class TestClosed:
    """No setting, and none that is missing, opens the doors."""

    def statuses(self, client, name):
        return [getattr(client, "post" if "release" in end else "get")(where(end, name)).status_code for end in NEEDS]

    @pytest.mark.parametrize("by", ["nobody", "key"])
    @pytest.mark.parametrize("permissions", [["rest_framework.permissions.AllowAny"], []])
    @pytest.mark.parametrize("who", ["django.contrib.auth.models.AnonymousUser", None])
    def test_a_project_without_authentication(self, rest, settings, lock_up, name, by, permissions, who):
        settings.REST_FRAMEWORK = {
            "DEFAULT_AUTHENTICATION_CLASSES": [],
            "DEFAULT_PERMISSION_CLASSES": permissions,
            "DEFAULT_THROTTLE_RATES": RATES,
            "UNAUTHENTICATED_USER": who,
        }
        lock_up(name)
        client = Api(headers={"x-api-key": KEY} if by == "key" else {})
        assert self.statuses(client, name) == [200 if by == "key" else 401] * 4
        rest(API_KEYS={})
        assert self.statuses(client, name) == [403] * 4  # there is no way to log in

    @pytest.mark.parametrize("given", ["", "None"])
    def test_no_keys_means_that_keys_are_off(self, rest, name, given):
        rest(API_KEYS={}, API_KEY_IN_QUERY=True)
        for client in (Api(headers={"x-api-key": given}), Api(headers={"authorization": f"Api-Key {given}"}), Api()):
            assert self.statuses(client, name) == [403] * 4
        assert Api().get(PREFIX + "locks", {"api_key": given}).status_code == 403

    @pytest.mark.parametrize("wrong", [{"a": ""}, {"a": None}, "secret"])
    def test_keys_that_cannot_be(self, rest, name, wrong):
        """Closed, and told by whom it can be put right: E001 says it too."""
        rest(API_KEYS=wrong)
        for given in ("", "None", "7", "x", "secret", "s"):
            with pytest.raises(ImproperlyConfigured, match="API_KEYS") as refused:
                Api(headers={"x-api-key": given}).get(PREFIX + "locks")
            assert "secret'" not in str(refused.value)


class TestThrottling:
    @pytest.fixture(autouse=True)
    def _a_cache_of_our_own(self, settings):
        settings.CACHES = {"default": {"BACKEND": "django.core.cache.backends.locmem.LocMemCache", "LOCATION": "rest"}}
        caches["default"].clear()

    @pytest.fixture(autouse=True)
    def _in_one_minute(self, monkeypatch):
        """However long the machine takes for the requests of a minute."""
        now = time.time()
        monkeypatch.setattr(Throttle, "timer", lambda throttle: now)

    def rates(self, settings, **rates):
        settings.REST_FRAMEWORK = {**settings.REST_FRAMEWORK, "DEFAULT_THROTTLE_RATES": rates}

    def test_each_caller_and_each_kind_of_end_point_has_its_own(self, rest, settings, user, name):
        self.rates(settings, tasklock_view="2/hour", tasklock_release="1/hour")
        grafana, oncall = Api(headers={"x-api-key": KEY}), Api(headers={"x-api-key": OTHER_KEY})
        assert [grafana.get(PREFIX + "locks").status_code, grafana.get(url(name)).status_code] == [200, 404]
        response = grafana.get(PREFIX + "locks")
        assert problem(response, 429, "throttled")
        assert 0 < int(response["Retry-After"]) <= 3600
        assert oncall.get(PREFIX + "locks").status_code == 200
        assert Api(headers=basic(user("view_lock"))).get(PREFIX + "locks").status_code == 200
        assert [grafana.post(url(name, "release-lock")).status_code for _ in range(2)] == [404, 429]

    def test_by_default(self, rest, settings, name):
        del settings.REST_FRAMEWORK
        client = Api(headers={"x-api-key": KEY})
        answers = [client.post(url(name, "release-lock")).status_code for _ in range(121)]
        assert answers == [404] * 120 + [429]
        assert client.get(PREFIX + "locks").status_code == 200

    def test_a_cache_that_is_down_limits_nobody(self, rest, settings, caplog, by_key):
        """It may be on the store that is looked after: then 503 must still be what is said, not 500."""
        gone = "redis://127.0.0.1:1/0"
        settings.CACHES = {"default": {"BACKEND": "django.core.cache.backends.redis.RedisCache", "LOCATION": gone}}
        self.rates(settings, tasklock_view="1/hour")
        with caplog.at_level(logging.WARNING, "django_tasklock"):
            assert [by_key.get(PREFIX + "locks").status_code for _ in range(2)] == [200, 200]
            rest(LOCATION=gone)
            problem(by_key.get(PREFIX + "locks"), 503, "store_unavailable")
        assert "not limited" in caplog.text
