"""Who may do what over HTTP: nobody without a key or a login, each with what they may, and never twice as often."""

from __future__ import annotations

import base64
import hmac
import logging
import secrets
import time
from typing import Any

import pytest
from django.contrib.admin.models import LogEntry
from django.contrib.auth.models import Permission
from django.core.cache import caches
from django.core.exceptions import ImproperlyConfigured
from django.test import RequestFactory
from django.urls import reverse

from django_tasklock import ConcurrencyLimiter, RateLimiter, api_keys, authentication
from django_tasklock.authentication import WRONG_KEYS, address_of
from django_tasklock.celery.queue.envelope import sign
from django_tasklock.models import AuditEntry, SweepEntry
from django_tasklock.operations import Actor
from django_tasklock.operations.limits.rates import pause_limit
from django_tasklock.operations.sweep import stream
from django_tasklock.rest.access import Throttle
from django_tasklock.rest.table import END_POINTS, EndPoint
from tests.support.guards import held
from tests.support.messages import park
from tests.support.rest import KEY, OTHER_KEY, PREFIX, RATES, Api, problem, url

pytest_plugins = ["tests.support.redis_fixtures", "tests.support.rest_fixtures"]
pytestmark = pytest.mark.django_db

LOCKS = PREFIX + "locks"
BOTH = {"view_lock", "release_lock"}


def basic(user):
    """As ``curl -u`` sends it."""
    return {"authorization": "Basic " + base64.b64encode(f"{user.username}:secret".encode()).decode()}


class TestEachEndPoint:
    @pytest.fixture
    def point(self, request: Any, rest: Any, monkeypatch: Any) -> EndPoint:
        """An end point, with a key that only reads and one that may do everything."""
        monkeypatch.setattr(stream, "sleep", lambda pause: None)
        rest(API_KEYS={"grafana": {"secret": KEY, "may": ["read"]}, "oncall": {"secret": OTHER_KEY, "may": ["all"]}})
        found: EndPoint = request.param
        return found

    @pytest.fixture
    def send(self, point: EndPoint, lock_up: Any, name: str) -> Any:
        """Sends the request that the end point is for, to something that is there."""
        limiter = RateLimiter(name, "9/m")
        limiter.acquire()
        if point.name == "resume-limit":
            pause_limit(name, 60, by=Actor("somebody"))
        permits = ConcurrencyLimiter(name, 2)
        permits.acquire()
        [member] = permits.members()
        if point.name != "publish-parked":
            lock_up(name)
        dead = {"state": "dead", "message": sign({"name": name})} if point.name == "requeue-parked" else {}
        task_id = park(1, name, **dead)
        run = SweepEntry.objects.create(at="2026-03-01T00:00:00Z", actor="x", swept=0, seconds=1)
        subject = {"name": name, "task_id": task_id, "number": run.pk}.get(point.subject)
        path = reverse(f"tasklock:{point.name}", args=[] if subject is None else [subject])
        needed = {"share": 0.5, "seconds": 60, "member": member.fingerprint}
        body = {field: value for field, value in needed.items() if field in point.fields}

        def request(key: str = "") -> Any:
            client = Api(enforce_csrf_checks=True, headers={"x-api-key": key} if key else {})
            return client.post(path, body) if point.acts else client.get(path)

        yield request
        permits.release()

    pytestmark = pytest.mark.parametrize("point", END_POINTS, indirect=True, ids=lambda point: point.name)

    def test_is_refused_without_a_key_and_acts_only_for_one_that_may_act(self, point, send, name):
        """Gold standard 8.42: nothing is changed by GET."""
        acts_before = AuditEntry.objects.count()
        problem(send(), 401, "not_authenticated")
        problem(send(f"{KEY}x"), 401, "authentication_failed")
        if point.acts:
            told = problem(send(KEY), 403, "permission_denied")
            assert "'grafana'" in told
            assert "'all'" in told
            assert "oncall" not in told
            assert held(name) is (point.name != "publish-parked")
            assert AuditEntry.objects.count() == acts_before
        else:
            assert send(KEY).status_code == 200
        response = send(OTHER_KEY)
        client, path = Api(headers={"x-api-key": OTHER_KEY}), response.wsgi_request.path
        for method in ("put", "patch", "delete", "get" if point.acts else "post"):
            assert getattr(client, method)(path).status_code == 405, method
        if point.name == "publish-parked":  # here is no worker for it
            assert "could not be sent" in problem(response, 409, "not_done")
            return
        assert response.status_code == 200, response.content
        if point.acts and point.name != "sweep":  # that is a dry run
            assert AuditEntry.objects.filter(actor="key oncall").count() == 1

    def test_wants_the_permissions_that_it_names(self, point, send, user):
        """A user who has all others is refused."""
        others = Permission.objects.filter(content_type__app_label="tasklock").exclude(
            codename=point.permissions[-1].removeprefix("tasklock.")
        )
        who = user()
        who.user_permissions.set(others)
        client = Api()
        client.force_login(who)
        path = send(KEY).wsgi_request.path
        assert (client.post(path) if point.acts else client.get(path)).status_code == 403

    def test_whatever_its_fields_are_it_is_no_error_of_ours(self, point, send):
        """Answers: done, or what is wrong with it. Never 500, and nothing is done to a field that cannot be."""
        awkward = ["", "\x00", "\ud800", "é" * 5000, "NaN", "2026-02-30", None, True, -1, 1e308, 10**40, [], [1], {}]
        path = send(KEY).wsgi_request.path
        client = Api(headers={"x-api-key": OTHER_KEY})
        for field in (*point.fields, "no_such_field"):
            for value in awkward:
                if point.acts:
                    response = client.post(path, {field: value}, content_type="application/json")
                elif isinstance(value, list | dict) or value in (None, "\ud800"):  # a query string has none of these
                    continue
                else:
                    response = client.get(path, {field: value})
                assert response.status_code in (200, 400, 404, 409), (field, value, response.content)
                assert field != "no_such_field" or not point.acts or response.json()["code"] == "unknown_field"


class TestPeople:
    """Users of the project, by their permissions as in the admin; what they did is in Django's own log, too."""

    @pytest.fixture
    def statuses(self, rest, lock_up, name):
        """What a client is answered: to a look, and to an act."""
        lock_up(name)

        def ask(client):
            answers = [client.get(url(name)), client.post(url(name, "ask-release"))]
            for answer in answers:
                assert ("WWW-Authenticate" in answer) is (answer.status_code == 401)
            return [answer.status_code for answer in answers]

        return ask

    @pytest.mark.parametrize(
        ("may", "more", "answers"),
        [
            ({"view_lock"}, {}, [200, 403]),
            ({"release_lock"}, {}, [403, 403]),
            (BOTH, {}, [200, 200]),
            (set(), {"is_staff": True}, [403, 403]),
            (BOTH, {"is_superuser": True, "is_active": False}, [401, 401]),
        ],
    )
    def test_with_a_password(self, statuses, user, may, more, answers):
        assert statuses(Api(enforce_csrf_checks=True, headers=basic(user(*may, **more)))) == answers
        done = answers.count(200) // 2
        assert AuditEntry.objects.exclude(user_id="").count() == LogEntry.objects.count() == done

    def test_with_a_session(self, statuses, user):
        """It acts with a token against CSRF only; a key beside it is what counts."""
        client = Api(enforce_csrf_checks=True)
        client.force_login(user(*BOTH))
        assert statuses(client) == [200, 403]
        client.defaults["HTTP_AUTHORIZATION"] = f"Api-Key {KEY}"
        assert statuses(client) == [200, 200]
        client.defaults["HTTP_AUTHORIZATION"] = f"Api-Key not {KEY}"
        assert statuses(client) == [401, 401]
        assert not LogEntry.objects.exists()
        del client.defaults["HTTP_AUTHORIZATION"]
        client.cookies["csrftoken"] = client.defaults["HTTP_X_CSRFTOKEN"] = "a" * 32
        assert statuses(client) == [200, 200]
        assert LogEntry.objects.count() == 1


class TestClosed:
    """No setting, and none that is missing, opens the doors."""

    def statuses(self, client, name):
        """Of a list, a look and two acts."""
        looks = [client.get(path) for path in (LOCKS, url(name))]
        acts = [client.post(url(name, end)) for end in ("ask-release", "release-lock")]
        return [answer.status_code for answer in (*looks, *acts)]

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
        assert Api().get(LOCKS, {"api_key": given}).status_code == 403

    @pytest.mark.parametrize("wrong", [{"a": ""}, {"a": None}, "secret"])
    def test_keys_that_cannot_be(self, rest, name, wrong):
        """Closed, and told by whom it can be put right: E001 says it too."""
        rest(API_KEYS=wrong)
        for given in ("", "None", "secret", "s"):
            with pytest.raises(ImproperlyConfigured, match="API_KEYS") as refused:
                Api(headers={"x-api-key": given}).get(LOCKS)
            assert "secret'" not in str(refused.value)


class TestKeys:
    @pytest.mark.parametrize(
        ("headers", "known"),
        [
            ({"authorization": f"Api-Key {KEY}"}, True),
            ({"authorization": f"aPI-kEY   {KEY} "}, True),
            ({"x-api-key": f" {KEY} "}, True),
            ({"authorization": "Bearer of something else", "x-api-key": KEY}, True),
            ({"authorization": f"Api-Key {KEY}", "x-api-key": "another"}, True),
            ({"authorization": "Api-Key"}, False),
            ({"authorization": f"Api-Key{KEY}"}, False),
            ({"authorization": f"Bearer {KEY}"}, False),
            ({"authorization": f"Api-Key {KEY[:-1]}"}, False),
            ({"authorization": f"Api-Key {KEY.upper()}"}, False),
            ({"authorization": "Api-Key grafana"}, False),
            ({"authorization": "Api-Key é", "x-api-key": KEY}, False),
            ({"x-api-key": ""}, False),
            ({"x-api-key": "\udcff"}, False),
        ],
    )
    def test_where_one_may_stand(self, rest, headers, known):
        assert Api(headers=headers).get(LOCKS).status_code == (200 if known else 401)

    @pytest.mark.parametrize("secret", ["schlüssel-ключ-密钥-" + "x" * 20, "with spaces in it and : = \" '"])
    def test_of_any_characters(self, rest, lock_up, name, secret):
        rest(API_KEYS={"日本": secret}, API_KEY_IN_QUERY=True)
        on_the_wire = secret.encode().decode("latin-1")  # what WSGI makes of its bytes
        for headers in ({"x-api-key": on_the_wire}, {"authorization": f"Api-Key {on_the_wire}"}):
            assert Api(headers=headers).get(LOCKS).status_code == 200
        assert Api().get(LOCKS, {"api_key": secret}).status_code == 200
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

    def test_in_the_query_string_only_where_that_is_switched_on(self, rest, lock_up, name):
        """The URLs of source 000, to the letter: look at a stuck lock, release it, find it gone."""
        told = problem(Api().get(LOCKS, {"api_key": KEY}), 401, "not_authenticated")
        assert "Authorization: Api-Key" in told
        assert Api().post(f"{url(name, 'release-lock')}?api_key={KEY}").status_code == 401
        rest(API_KEY_IN_QUERY=True)
        lock_up(name)
        client = Api(enforce_csrf_checks=True)
        assert client.get(f"{PREFIX}{name}/lock?api_key={KEY}").status_code == 200
        assert client.get(f"{LOCKS}?api_key=wrong").status_code == 401
        assert client.post(f"{PREFIX}{name}/release-lock?api_key={KEY}").status_code == 200
        assert not held(name)
        assert client.get(f"{PREFIX}{name}/lock?api_key={KEY}").status_code == 404


def wrong(number: int, **headers: str) -> list[int]:
    client = Api()
    return [client.get(LOCKS, headers={"x-api-key": secrets.token_hex()}, **headers).status_code for _ in range(number)]


class TestWrongKeys:
    @pytest.fixture(autouse=True)
    def _half_past(self, rest, monkeypatch):
        """The minute does not end in the middle; nothing is counted yet: a minute of this test's own."""
        minute = secrets.randbelow(10**9) * 60
        monkeypatch.setattr(authentication.time, "time", lambda: minute + 30.0)
        monkeypatch.setattr(authentication, "WRONG_KEYS", WRONG_KEYS)  # none are, in other tests

    def test_too_many_in_a_minute_are_slowed_down(self, caplog, monkeypatch):
        """Each address apart; the next minute begins anew."""
        with caplog.at_level(logging.WARNING, "django_tasklock"):
            assert wrong(2 * WRONG_KEYS) == [401] * WRONG_KEYS + [429] * WRONG_KEYS
        response = Api(headers={"x-api-key": "wrong"}).get(LOCKS)
        assert problem(response, 429, "throttled")
        assert 1 <= int(response["Retry-After"]) <= 60
        (record,) = [record for record in caplog.records if "slowed down" in record.message]
        assert "127.0.0.1" in record.message
        assert "wrong" not in str(record.args)
        assert wrong(1, REMOTE_ADDR="10.0.0.2") == wrong(1, REMOTE_ADDR="2001:db8::1") == [401]
        assert wrong(WRONG_KEYS + 1, REMOTE_ADDR="") == [401] * WRONG_KEYS + [429]  # a socket
        now = authentication.time.time()
        monkeypatch.setattr(authentication.time, "time", lambda: now + 60)
        assert wrong(1) == [401]

    def test_a_right_key_is_not(self, lock_up, name):
        """From the same address either: a proxy's may be everybody's."""
        lock_up(name)
        wrong(WRONG_KEYS + 1)
        assert Api().get(url(name)).status_code == 401  # no key is no wrong one
        assert Api(headers={"x-api-key": KEY}).post(url(name, "release-lock")).status_code == 200

    @pytest.mark.parametrize(
        ("proxies", "forwarded", "address"),
        [
            (None, "1.1.1.1", "127.0.0.1"),
            (0, "1.1.1.1", "127.0.0.1"),
            (1, "made up, 1.1.1.1", "1.1.1.1"),
            (2, "made up, 1.1.1.1, 2.2.2.2", "1.1.1.1"),
            (3, "1.1.1.1", "1.1.1.1"),
            (1, "", "127.0.0.1"),
        ],
    )
    def test_the_address_behind_proxies(self, settings, proxies, forwarded, address):
        """Nobody is somebody else each time by saying so."""
        settings.REST_FRAMEWORK = {**settings.REST_FRAMEWORK, "NUM_PROXIES": proxies}
        assert address_of(RequestFactory().get("/", headers={"x-forwarded-for": forwarded})) == address

    @pytest.mark.parametrize("backend", ["redis.RedisCache", "dummy.DummyCache"])
    def test_without_a_working_cache_they_are_not_counted(self, settings, caplog, backend):
        cache = {"BACKEND": f"django.core.cache.backends.{backend}", "LOCATION": "redis://127.0.0.1:1/0"}
        settings.CACHES = {"default": cache}
        with caplog.at_level(logging.WARNING, "django_tasklock"):
            assert wrong(WRONG_KEYS + 1) == [401] * (WRONG_KEYS + 1)
            assert Api(headers={"x-api-key": KEY}).get(LOCKS).status_code == 200
        assert "not counted" in caplog.text


class TestThrottling:
    @pytest.fixture(autouse=True)
    def _a_cache_and_a_minute_of_its_own(self, settings, monkeypatch):
        """However long the machine takes for the requests of a minute."""
        settings.CACHES = {"default": {"BACKEND": "django.core.cache.backends.locmem.LocMemCache", "LOCATION": "rest"}}
        caches["default"].clear()
        now = time.time()
        monkeypatch.setattr(Throttle, "timer", lambda throttle: now)

    def rates(self, settings, **rates):
        settings.REST_FRAMEWORK = {**settings.REST_FRAMEWORK, "DEFAULT_THROTTLE_RATES": rates}

    def test_each_caller_and_each_kind_of_end_point_has_its_own(self, rest, settings, user, name):
        self.rates(settings, tasklock_view="2/hour", tasklock_release="1/hour")
        grafana, oncall = Api(headers={"x-api-key": KEY}), Api(headers={"x-api-key": OTHER_KEY})
        assert [grafana.get(LOCKS).status_code, grafana.get(url(name)).status_code] == [200, 404]
        response = grafana.get(LOCKS)
        assert problem(response, 429, "throttled")
        assert 0 < int(response["Retry-After"]) <= 3600
        assert oncall.get(LOCKS).status_code == 200
        assert Api(headers=basic(user("view_lock"))).get(LOCKS).status_code == 200
        assert [grafana.post(url(name, "release-lock")).status_code for _ in range(2)] == [404, 429]

    def test_by_default(self, rest, settings, name):
        del settings.REST_FRAMEWORK
        client = Api(headers={"x-api-key": KEY})
        answers = [client.post(url(name, "release-lock")).status_code for _ in range(121)]
        assert answers == [404] * 120 + [429]
        assert client.get(LOCKS).status_code == 200

    def test_a_cache_that_is_down_limits_nobody(self, rest, settings, caplog, by_key):
        """It may be on the store that is looked after: then 503 must still be what is said, not 500."""
        gone = "redis://127.0.0.1:1/0"
        settings.CACHES = {"default": {"BACKEND": "django.core.cache.backends.redis.RedisCache", "LOCATION": gone}}
        self.rates(settings, tasklock_view="1/hour")
        with caplog.at_level(logging.WARNING, "django_tasklock"):
            assert [by_key.get(LOCKS).status_code for _ in range(2)] == [200, 200]
            rest(LOCATION=gone)
            problem(by_key.get(LOCKS), 503, "store_unavailable")
        assert "not limited" in caplog.text
