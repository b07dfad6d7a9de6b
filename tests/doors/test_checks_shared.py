"""Locks beside a cache: ``clear()`` would free them all. Nobody is asked; the addresses are nobody's."""

from __future__ import annotations

import pytest
from django.core.checks import run_checks

from django_tasklock.checks import TAG
from tests.support.guards import no_guards

DJANGO_REDIS, DJANGO = "django_redis.cache.RedisCache", "django.core.cache.backends.redis.RedisCache"
URL = "redis://127.0.0.1:1/3"


def sentinel(*nodes: tuple[str, int], url: str = "redis://video/3", **more):
    return {
        "BACKEND": DJANGO_REDIS,
        "LOCATION": url,
        "OPTIONS": {
            "CLIENT_CLASS": "django_redis.client.SentinelClient",
            "CONNECTION_FACTORY": "django_redis.pool.SentinelConnectionFactory",
            "CONNECTION_POOL_CLASS": "redis.sentinel.SentinelConnectionPool",
            "SENTINELS": nodes,
            **more,
        },
    }


@pytest.fixture(autouse=True)
def _no_guards():
    no_guards()


@pytest.fixture(autouse=True)
def _fresh_pools(monkeypatch):
    from django_redis.pool import ConnectionFactory

    monkeypatch.setattr(ConnectionFactory, "_pools", {})


@pytest.fixture(autouse=True)
def _no_socket(monkeypatch):
    """Whoever connects, or looks up a name, fails the test."""

    def refused(*args, **kwargs):
        raise AssertionError("the network was used")

    monkeypatch.setattr("socket.socket.connect", refused)
    monkeypatch.setattr("socket.getaddrinfo", refused)


@pytest.fixture
def checked(settings):
    """``checked(location, **aliases)``: the findings, by id."""

    def checked(location: str, backend: str | None = None, **aliases):
        settings.CACHES = {"default": {"BACKEND": "django.core.cache.backends.locmem.LocMemCache"}, **aliases}
        settings.TASKLOCK = {"LOCATION": location, "BACKEND": backend}
        found = {message.id.removeprefix("tasklock."): message for message in run_checks(tags=[TAG])}
        assert "E002" not in found, found
        return found

    return checked


@pytest.mark.parametrize(
    "cache",
    [
        {"BACKEND": DJANGO_REDIS, "LOCATION": URL},
        {"BACKEND": DJANGO, "LOCATION": URL},
        {"BACKEND": DJANGO_REDIS, "LOCATION": "redis://localhost:1/3"},
        {"BACKEND": DJANGO_REDIS, "LOCATION": "redis://someone:secret@127.0.0.1:1/3?socket_timeout=2"},
        {"BACKEND": DJANGO_REDIS, "LOCATION": "redis://127.0.0.1:1", "OPTIONS": {"CONNECTION_POOL_KWARGS": {"db": 3}}},
        {"BACKEND": DJANGO, "LOCATION": f"{URL},redis://127.0.0.1:2/3"},
        {
            "BACKEND": DJANGO_REDIS,
            "LOCATION": ["redis://127.0.0.1:2/3", URL],
            "OPTIONS": {"CLIENT_CLASS": "django_redis.client.ShardClient"},
        },
        {"BACKEND": "another_redis.RedisCache", "LOCATION": URL},
    ],
    ids=str,
)
def test_w004_a_cache_in_the_same_database(checked, cache):
    found = checked(URL, pages=cache)
    assert set(found) == {"W004"}
    message = found["W004"]
    assert not message.is_serious()
    assert "The locks are in database 3 of localhost:1, and so is caches['pages']" in message.msg
    assert "TASKLOCK['LOCATION']" in message.hint
    assert "secret" not in str(message)


@pytest.mark.parametrize(
    "cache",
    [
        {"BACKEND": DJANGO_REDIS, "LOCATION": "redis://127.0.0.1:1/2"},
        {"BACKEND": DJANGO_REDIS, "LOCATION": "redis://127.0.0.1:2/3"},
        {"BACKEND": DJANGO_REDIS, "LOCATION": "redis://elsewhere:1/3"},
        {"BACKEND": DJANGO, "LOCATION": "redis://127.0.0.1:2/3,redis://127.0.0.1:1/3"},  # clear() is the primary's
        {"BACKEND": "django.core.cache.backends.memcached.PyMemcacheCache", "LOCATION": "127.0.0.1:1"},
        sentinel(("127.0.0.1", 1)),
    ],
    ids=str,
)
def test_a_cache_elsewhere(checked, cache):
    assert checked(URL, pages=cache) == {}


def test_w004_through_sentinels(checked):
    mine = sentinel(("one", 1), ("two", 1))
    assert "database 3 of service video" in checked("locks", locks=mine, pages=sentinel(("two", 1)))["W004"].msg
    assert "W004" not in checked("locks", locks=mine, pages=sentinel(("three", 1), url="redis://video:1/3"))
    assert checked("locks", locks=mine, pages=sentinel(("two", 1), url="redis://video/2")) == {}
    assert checked("locks", locks=mine, pages=sentinel(("two", 1), url="redis://audio/3")) == {}


class TestTheAliasOfTheLocks:
    CACHE = {"BACKEND": DJANGO_REDIS, "LOCATION": URL}

    def test_w004_is_a_cache_that_everybody_uses(self, checked, settings):
        assert "caches['default']" in checked("default", default=self.CACHE)["W004"].msg
        settings.SESSION_CACHE_ALIAS = "pages"
        assert "caches['pages']" in checked("pages", pages=self.CACHE)["W004"].msg

    def test_is_theirs_alone(self, checked):
        assert checked("locks", locks=self.CACHE) == {}

    @pytest.mark.parametrize("options", [{}, {"PASSWORD": "theirs"}, {"CONNECTION_POOL_KWARGS": {"db": 5}}], ids=str)
    def test_w004_of_one_url_with_other_options(self, checked, options):
        """django-redis keeps one pool for each URL, so both aliases lead to the database of whichever comes first."""
        mine = {**self.CACHE, "OPTIONS": {"PASSWORD": "mine"}}
        found = checked("locks", locks=mine, pages={**self.CACHE, "OPTIONS": options})
        assert set(found) == {"W004"}
        assert "caches['pages']" in found["W004"].msg
        assert "mine" not in str(found["W004"])
