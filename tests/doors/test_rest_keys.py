"""API keys: where one may stand, what one may do, that its comparison tells nothing, and what becomes of wrong ones."""

from __future__ import annotations

import hmac
import logging
import multiprocessing
import secrets

import pytest
from django.core.cache import caches
from django.test import RequestFactory

from django_tasklock import api_keys, authentication
from django_tasklock.authentication import WRONG_KEYS, address_of
from django_tasklock.models import AuditEntry
from tests.support.guards import held
from tests.support.rest import KEY, OTHER_KEY, PREFIX, Api, problem, url

pytest_plugins = ["tests.support.redis_fixtures", "tests.support.rest_fixtures"]
pytestmark = pytest.mark.django_db


def scoped(*may: str) -> dict[str, object]:
    return {"grafana": {"secret": f" {KEY} ", "may": [*may]}, "oncall": OTHER_KEY}


class TestScopes:
    """That each end point asks for its scope: ``test_rest_table``."""

    @pytest.mark.parametrize("may", [["read"], ["all"], ["read", "all"]])
    def test_reading_and_all(self, rest, lock_up, name, may):
        rest(API_KEYS=scoped(*may))
        lock_up(name)
        client = Api(headers={"x-api-key": KEY})
        for path in (PREFIX + "locks", url(name), PREFIX + "limits", PREFIX + "audit"):
            assert client.get(path).status_code == 200
        response = client.post(url(name, "release-lock"))
        if "all" in may:
            assert response.status_code == 200
            return
        told = problem(response, 403, "permission_denied")
        assert "'all'" in told
        assert "'grafana'" in told
        assert "'oncall'" not in told
        assert held(name)


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
        assert Api(headers=headers).get(PREFIX + "locks").status_code == 401

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


def wrong(number: int, **headers: str) -> list[int]:
    client = Api()
    return [
        client.get(PREFIX + "locks", headers={"x-api-key": secrets.token_hex()}, **headers).status_code
        for _ in range(number)
    ]


def _wrong_in_a_process(number: int, said: multiprocessing.Queue) -> None:
    caches.close_all()
    said.put(wrong(number))


class TestWrongKeys:
    @pytest.fixture(autouse=True)
    def _half_past(self, rest, monkeypatch):
        """The minute does not end in the middle; nothing is counted yet: a minute of this test's own."""
        minute = secrets.randbelow(10**9) * 60
        monkeypatch.setattr(authentication.time, "time", lambda: minute + 30.0)
        monkeypatch.setattr(authentication, "WRONG_KEYS", WRONG_KEYS)  # none are, in other tests

    def test_300_in_a_minute_are_slowed_down(self, caplog):
        with caplog.at_level(logging.WARNING, "django_tasklock"):
            assert wrong(300) == [401] * WRONG_KEYS + [429] * (300 - WRONG_KEYS)
        response = Api(headers={"x-api-key": "wrong"}).get(PREFIX + "locks")
        assert problem(response, 429, "throttled")
        assert 1 <= int(response["Retry-After"]) <= 60
        (record,) = [record for record in caplog.records if "slowed down" in record.message]
        assert "127.0.0.1" in record.message
        assert "wrong" not in str(record.args)

    def test_a_right_key_is_not(self, lock_up, name):
        """From the same address either: a proxy's may be everybody's."""
        lock_up(name)
        for status in (401, 429):
            assert status in wrong(WRONG_KEYS)
            wrong(1)
            assert Api(headers={"x-api-key": KEY}).get(url(name)).status_code == 200
            assert Api().get(url(name)).status_code == 401  # no key is no wrong one
        assert Api(headers={"x-api-key": KEY}).post(url(name, "release-lock")).status_code == 200

    def test_each_address_apart(self):
        assert wrong(WRONG_KEYS + 1, REMOTE_ADDR="10.0.0.1")[-1] == 429
        assert wrong(1, REMOTE_ADDR="10.0.0.2") == [401]
        assert wrong(1, REMOTE_ADDR="2001:db8::1") == [401]
        assert wrong(WRONG_KEYS + 1, REMOTE_ADDR="") == [401] * WRONG_KEYS + [429]  # a socket

    def test_the_next_minute_begins_anew(self, monkeypatch):
        assert wrong(WRONG_KEYS + 1)[-1] == 429
        now = authentication.time.time()
        monkeypatch.setattr(authentication.time, "time", lambda: now + 60)
        assert wrong(1) == [401]

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

    def test_over_processes(self, monkeypatch):
        fork = multiprocessing.get_context("fork")
        said = fork.Queue()
        processes = [fork.Process(target=_wrong_in_a_process, args=(20, said)) for _ in range(4)]
        for process in processes:
            process.start()
        answers = [answer for _ in processes for answer in said.get(timeout=60)]
        for process in processes:
            process.join(60)
        assert sorted(answers) == [401] * WRONG_KEYS + [429] * (80 - WRONG_KEYS)

    @pytest.mark.parametrize("backend", ["redis.RedisCache", "dummy.DummyCache"])
    def test_without_a_working_cache_wrong_keys_are_not_throttled(self, settings, caplog, backend):
        cache = {"BACKEND": f"django.core.cache.backends.{backend}", "LOCATION": "redis://127.0.0.1:1/0"}
        settings.CACHES = {"default": cache}
        with caplog.at_level(logging.WARNING, "django_tasklock"):
            assert wrong(WRONG_KEYS + 1) == [401] * (WRONG_KEYS + 1)
            assert Api(headers={"x-api-key": KEY}).get(PREFIX + "locks").status_code == 200
        assert "not counted" in caplog.text
