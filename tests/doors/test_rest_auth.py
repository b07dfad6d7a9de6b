"""Who may do what over HTTP: keys, users, nobody; and what is never told to anybody."""

from __future__ import annotations

import base64
import hmac
import logging
import secrets
import subprocess
import sys
import time
from itertools import product

import pytest
from django.contrib.admin.models import LogEntry
from django.contrib.auth.models import AnonymousUser
from django.core.cache import caches
from django.core.exceptions import ImproperlyConfigured
from django.test import RequestFactory
from rest_framework.request import Request

from django_tasklock import api_keys
from django_tasklock.models import AuditEntry
from django_tasklock.rest.access import ApiKeyAuthentication, KeyUser, Throttle
from tests.support.guards import held
from tests.support.rest import KEY, OTHER_KEY, PREFIX, RATES, Api, problem, url

pytest_plugins = ["tests.support.redis_fixtures", "tests.support.rest_fixtures"]
pytestmark = pytest.mark.django_db

BOTH = {"view_lock", "release_lock"}
NEEDS = {"locks": {"view_lock"}, "lock": {"view_lock"}, "ask-release": BOTH, "release-lock": BOTH}  # as in the admin
TAKES = {"locks": {"get", "head"}, "lock": {"get", "head"}, "ask-release": {"post"}, "release-lock": {"post"}}
SAFE = ("get", "head", "options", "trace")
UNSAFE = ("put", "patch", "delete", "post")  # the act itself comes last


def where(end, name):
    """The path of an end point."""
    return PREFIX + "locks" if end == "locks" else url(name, end)


def basic(user):
    """As ``curl -u`` sends it."""
    return {"authorization": "Basic " + base64.b64encode(f"{user.username}:secret".encode()).decode()}


def everything(store, prefix):
    """All that is in the store under a prefix, and in the trail, with times in steps that a test does not see pass."""
    kept = {key: (store.dump(key), (store.ttl(key) + 300) // 600) for key in store.keys(f"{prefix}*")}
    return kept, AuditEntry.objects.count(), LogEntry.objects.count()


class TestWhoMayDoWhat:
    """Every kind of caller, every end point, every method."""

    CALLERS = {  # kind: (known, may, needs a CSRF token that it does not send)
        "nobody": (False, set(), False),
        "a key that is none": (False, set(), False),
        "a key": (True, BOTH, False),
        "a user without permissions": (True, set(), False),
        "a user who may view": (True, {"view_lock"}, False),
        "a user who may release": (True, {"release_lock"}, False),
        "a user who may do both": (True, BOTH, False),
        "staff": (True, set(), False),
        "a superuser": (True, BOTH, False),
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
    def test_matrix(self, rest, user, lock_up, store, name, kind):
        """Nothing but the two acts changes anything, by GET least of all: gold standard 8.42.

        Under a prefix of its own: what earlier tests have left under the usual one ends when its time has come.
        """
        prefix = f"auth#{name}"
        rest(KEY_PREFIX=f"{prefix}:")
        known, may, without_token = self.CALLERS[kind]
        client = self.client(kind, user)
        lock = lock_up(name)
        before, seen = everything(store, prefix), {}
        assert before[0]
        for method, end in product((*SAFE, *UNSAFE), NEEDS):
            if not known:
                expected = 401
            elif (without_token and method in UNSAFE) or not may >= NEEDS[end]:
                expected = 403
            else:
                expected = 200 if method in {*TAKES[end], "options"} else 405
            acts = method == "post" and expected == 200
            response = getattr(client, method)(where(end, name))
            assert response.status_code == expected, (end, method, response.content)
            assert response["Cache-Control"] == "no-store"
            assert lock.token not in response.content.decode() + str(response.headers)
            assert KEY not in response.content.decode() + str(response.headers)
            assert ("WWW-Authenticate" in response) is (expected == 401)
            if expected == 401:
                assert response["WWW-Authenticate"].startswith('Api-Key realm="')
            if expected >= 400 and method != "head":
                assert response.json().keys() == {"code", "detail"}
            if not acts and not seen:
                assert everything(store, prefix) == before, (end, method)
            if acts:
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

    @pytest.mark.parametrize("kind", ["Stateless", "Bare", "WithoutPermissions"])
    def test_a_user_that_is_no_row_of_the_user_table(self, rest, settings, lock_up, name, kind):
        """As stateless tokens make them, and user models without permissions."""
        ours = {"DEFAULT_AUTHENTICATION_CLASSES": [f"{__name__}.{kind}"]}
        settings.REST_FRAMEWORK = {**settings.REST_FRAMEWORK, **ours}
        lock_up(name)
        response = Api(headers={"x-who": "service"}).post(url(name, "release-lock"))
        if kind == "WithoutPermissions":
            assert problem(response, 403, "permission_denied")
            return
        assert response.status_code == 200
        entry = AuditEntry.objects.get(name=name)
        assert (entry.actor, entry.user_id) == ("service", "")
        assert not LogEntry.objects.exists()


class Bare:
    """An authentication class of a project, and what it takes for a user."""

    is_authenticated = True

    def authenticate(self, request):
        self.who = request.META.get("HTTP_X_WHO")
        return self, "a token"

    def authenticate_header(self, request):
        return "Bare"

    def has_perm(self, perm):
        return True

    def __str__(self):
        return self.who


class Stateless(Bare):
    """With a primary key of somebody else's."""

    pk = 7

    def get_username(self):
        return self.who


class WithoutPermissions(Bare):
    """No ``PermissionsMixin``."""

    @property
    def has_perm(self):
        raise AttributeError


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

    def test_rest_framework_left_as_it_comes(self, rest, settings, lock_up, name):
        del settings.REST_FRAMEWORK
        lock_up(name)
        assert self.statuses(Api(), name) == [401] * 4
        rest(API_KEYS={})
        assert self.statuses(Api(), name) == [403] * 4  # session first: REST framework's own rule

    def test_the_challenge_is_ours_and_that_of_the_projects_first_class(self, rest, settings, name):
        basic_first = ["rest_framework.authentication.BasicAuthentication"]
        settings.REST_FRAMEWORK = {"DEFAULT_AUTHENTICATION_CLASSES": basic_first}
        assert Api().get(url(name))["WWW-Authenticate"] == 'Api-Key realm="tasklock", Basic realm="api"'
        rest(API_KEYS={})
        assert Api().get(url(name))["WWW-Authenticate"] == 'Basic realm="api"'

    def test_permissions_of_anonymous_users_do_not_count(self, rest, monkeypatch, name):
        monkeypatch.setattr(AnonymousUser, "has_perm", lambda self, perm, obj=None: True)
        assert self.statuses(Api(), name) == [401] * 4

    @pytest.mark.parametrize("given", ["", " ", "None", "x", "{}"])
    def test_no_keys_means_that_keys_are_off(self, rest, name, given):
        rest(API_KEYS={}, API_KEY_IN_QUERY=True)
        for client in (Api(headers={"x-api-key": given}), Api(headers={"authorization": f"Api-Key {given}"}), Api()):
            assert self.statuses(client, name) == [403] * 4
        assert Api().get(PREFIX + "locks", {"api_key": given}).status_code == 403

    @pytest.mark.parametrize("wrong", [{"a": ""}, {"a": " "}, {"a": None}, {"a": 7}, {"a": b"x"}, "secret", ["secret"]])
    def test_keys_that_cannot_be(self, rest, name, wrong):
        """Closed, and told by whom it can be put right: E001 says it too."""
        rest(API_KEYS=wrong)
        for given in ("", "None", "7", "x", "secret", "s"):
            with pytest.raises(ImproperlyConfigured, match="API_KEYS") as refused:
                Api(headers={"x-api-key": given}).get(PREFIX + "locks")
            assert "secret'" not in str(refused.value)


class TestKeys:
    @pytest.mark.parametrize(
        "headers",
        [
            {"authorization": f"Api-Key {KEY}"},
            {"authorization": f"aPI-kEY   {KEY} "},
            {"x-api-key": KEY},
            {"x-api-key": f" {KEY} "},
            {"authorization": "Bearer of something else", "x-api-key": KEY},
            {"authorization": f"Api-Key {KEY}", "x-api-key": "another"},
        ],
    )
    def test_where_it_may_stand(self, rest, headers):
        assert Api(headers=headers).get(PREFIX + "locks").status_code == 200

    @pytest.mark.parametrize(
        "headers",
        [
            {"authorization": "Api-Key"},
            {"authorization": "Api-Key "},
            {"authorization": f"Api-Key{KEY}"},
            {"authorization": f"Bearer {KEY}"},
            {"authorization": f"Api-Key {KEY[:-1]}"},
            {"authorization": f"Api-Key {KEY} {KEY}"},
            {"authorization": f"Api-Key {KEY.upper()}"},
            {"authorization": "Api-Key grafana"},
            {"authorization": "Api-Key é", "x-api-key": KEY},
            {"x-api-key": ""},
            {"x-api-key": f"Api-Key {KEY}"},
            {"x-api-key": "\udcff"},
        ],
    )
    def test_what_is_no_key(self, rest, headers):
        problem(
            Api(headers=headers).get(PREFIX + "locks"), 401, Api(headers=headers).get(PREFIX + "locks").json()["code"]
        )

    @pytest.mark.parametrize("secret", ["schlüssel-ключ-密钥-" + "x" * 20, "with spaces in it and : = \" '", "é" * 32])
    def test_a_key_of_any_characters(self, rest, lock_up, name, secret):
        rest(API_KEYS={"日本": secret}, API_KEY_IN_QUERY=True)
        on_the_wire = secret.encode().decode("latin-1")  # what WSGI makes of its bytes
        for headers in ({"x-api-key": on_the_wire}, {"authorization": f"Api-Key {on_the_wire}"}):
            assert Api(headers=headers).get(PREFIX + "locks").status_code == 200
        assert Api().get(PREFIX + "locks", {"api_key": secret}).status_code == 200
        assert Api(headers={"x-api-key": on_the_wire[:-1]}).get(PREFIX + "locks").status_code == 401
        lock_up(name)
        assert Api(headers={"x-api-key": on_the_wire}).post(url(name, "release-lock")).status_code == 200
        assert AuditEntry.objects.get(name=name).actor == "key 日本"

    @pytest.mark.parametrize("given", [KEY, OTHER_KEY, "neither", ""])
    def test_every_key_is_compared_in_constant_time(self, rest, monkeypatch, given):
        """No early exit, and nothing else looks at what was sent."""
        compared = []
        monkeypatch.setattr(
            api_keys.hmac,
            "compare_digest",
            lambda a, b, real=hmac.compare_digest: (compared.append((a, b)), real(a, b))[1],
        )
        many = {"grafana": KEY, **{f"key {number}": secrets.token_hex(16) for number in range(5)}, "oncall": OTHER_KEY}
        found = api_keys.find_key(given.encode(), api_keys.keys_of(many))
        assert (found and found.name) == {KEY: "grafana", OTHER_KEY: "oncall"}.get(given)
        assert len(compared) == len(many)
        assert {len(side) for pair in compared for side in pair} == {32}  # digests: no length is told either

    def test_in_views_of_the_projects_own(self, rest):
        """The class may stand in ``authentication_classes`` anywhere, keys or no keys."""
        request = Request(RequestFactory().get("/", headers={"x-api-key": KEY}))
        who, _ = ApiKeyAuthentication().authenticate(request)
        assert str(who) == "key grafana"
        rest(API_KEYS={})
        assert ApiKeyAuthentication().authenticate(request) is None
        assert not ApiKeyAuthentication().authenticate_header(request)

    def test_the_first_of_two_names_for_one_secret(self):
        assert api_keys.find_key(b"same", api_keys.keys_of({"a": "same", "b": "same"})).name == "a"

    def test_not_in_the_query_string(self, rest, name):
        told = problem(Api().get(PREFIX + "locks", {"api_key": KEY}), 401, "not_authenticated")
        assert "Authorization: Api-Key" in told
        assert Api().post(f"{url(name, 'release-lock')}?api_key={KEY}").status_code == 401
        assert "api_key" not in Api().get(PREFIX + "locks").json()["detail"]

    def test_in_the_query_string_where_that_is_switched_on(self, rest, lock_up, name):
        """The URLs of source 000, to the letter."""
        rest(API_KEY_IN_QUERY=True)
        lock_up(name)
        client = Api(enforce_csrf_checks=True)
        assert client.get(f"{PREFIX}{name}/lock?api_key={KEY}").status_code == 200
        assert client.get(f"{PREFIX}locks?api_key=wrong").status_code == 401
        response = client.post(f"{PREFIX}{name}/release-lock?api_key={KEY}")
        assert response.status_code == 200
        assert not held(name)
        assert KEY not in response.content.decode()

    def test_a_key_may_nothing_else(self):
        who = KeyUser(api_keys.ApiKey("grafana", KEY))
        assert not who.has_perm("tasklock.change_auditentry")
        assert not KeyUser(api_keys.ApiKey("grafana", KEY, acts=False)).has_perm("tasklock.release_lock")
        assert not who.has_perm("auth.change_user")
        assert (who.is_staff, who.is_superuser, who.get_username()) == (False, False, "key grafana")


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

    def test_refused_requests_do_not_use_up_the_quota(self, rest, settings, name):
        self.rates(settings, tasklock_view="1/hour")
        for _ in range(3):
            assert Api().get(PREFIX + "locks").status_code == 401
        assert Api(headers={"x-api-key": KEY}).get(PREFIX + "locks").status_code == 200

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


def test_without_the_extra_one_sentence_says_what_to_install():
    program = """
import sys
class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "rest_framework":
            raise ModuleNotFoundError(name)
sys.meta_path.insert(0, Missing())
import django_tasklock
try:
    import django_tasklock.rest.urls
except ImportError as error:
    print(error)
"""
    said = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    assert said.stdout.strip() == (
        "django_tasklock.rest needs rest_framework, which is not installed: pip install 'django-tasklock[rest]'"
    )
