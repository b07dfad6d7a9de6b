"""Keys that may only read, and what becomes of wrong ones."""

from __future__ import annotations

import json
import logging
import multiprocessing
import secrets

import pytest
from django.core.cache import caches
from django.test import RequestFactory

from django_tasklock import authentication
from django_tasklock.authentication import WRONG_KEYS, KeyRefused, address_of, authenticate, refusal
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

    def test_a_secret_alone_may_do_everything(self, rest, lock_up, name):
        rest(API_KEYS=scoped("read"))
        lock_up(name)
        assert Api(headers={"x-api-key": OTHER_KEY}).post(url(name, "release-lock")).status_code == 200

    @pytest.mark.parametrize("kind", [list, tuple, set, frozenset])
    def test_any_list(self, rest, kind):
        rest(API_KEYS={"grafana": {"secret": KEY, "may": kind(["read"])}})
        assert Api(headers={"x-api-key": KEY}).get(PREFIX + "locks").status_code == 200

    def test_a_view_without_rest_framework(self, rest):
        """As that of the metrics is."""
        rest(API_KEYS=scoped("read"))
        get = RequestFactory().get
        with_key = get("/", headers={"authorization": f"Api-Key {KEY}"})
        assert authenticate(with_key).name == "grafana"
        assert refusal(with_key) is None
        for request, word in (
            (get("/"), "Authorization"),
            (get("/", headers={"x-api-key": "wrong"}), "not known"),
        ):
            answer = refusal(request)
            assert (answer.status_code, word in json.loads(answer.content)["detail"]) == (401, True)
            assert answer["Cache-Control"] == "no-store"
            assert "WWW-Authenticate" in answer
        rest(API_KEYS={})
        assert refusal(with_key).status_code == 403


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

    def test_a_view_without_rest_framework(self):
        def answer():
            return refusal(RequestFactory().get("/", headers={"x-api-key": "wrong"}))

        assert [answer().status_code for _ in range(WRONG_KEYS + 1)] == [401] * WRONG_KEYS + [429]
        assert 1 <= int(answer()["Retry-After"]) <= 60
        with pytest.raises(KeyRefused):
            authenticate(RequestFactory().get("/", headers={"x-api-key": "wrong"}))
