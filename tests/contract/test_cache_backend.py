"""What only the cache backend has: keys of its own, local deadlines, hidden errors, and what a cache cannot do."""

from __future__ import annotations

import re
from datetime import timedelta

import pytest
from django.conf import settings as django_settings
from django.core.cache import caches
from django.core.exceptions import ImproperlyConfigured
from django.core.management import call_command
from django.db import connection, transaction
from django.test import override_settings
from django.utils.timezone import now as tz_now

from django_tasklock import task_lock
from django_tasklock.backends.cache import CacheBackend, backend as module, weakness
from django_tasklock.backends.cache.alias import cache_key
from django_tasklock.conf import Settings
from django_tasklock.exceptions import BackendUnavailable, TransactionOpen
from django_tasklock.locks.heartbeat import heartbeat
from django_tasklock.types import Busy, Grant, Released, Renewal, RenewalResult
from tests.support.caches import FakeMemcached, HidingCache
from tests.support.redis_server import free_port
from tests.support.stores import an_ask, clear, eventually, granted, make, new_token

DJANGO_REDIS = "django_redis.cache.RedisCache"
DATABASE_CACHE = "django.core.cache.backends.db.DatabaseCache"
CORE_REDIS = "django.core.cache.backends.redis.RedisCache"


def a_cache(backend: str, **more: object) -> CacheBackend:
    """A backend on a cache of this configuration."""
    with override_settings(CACHES={**django_settings.CACHES, "locks": {"BACKEND": backend, **more}}):
        return CacheBackend(Settings(LOCATION="locks"))


@pytest.fixture
def backend():
    """On a cache of this process, which is as good as any for one process."""
    found = a_cache("tests.support.caches.HidingCache", LOCATION=new_token())
    yield found
    HidingCache.down = False


@pytest.fixture
def redis():
    """The raw client behind the cache that ``cache-django-redis`` uses."""
    clear("cache-django-redis")
    return caches["default"].client.get_client()


class TestKeys:
    @pytest.mark.redis
    @pytest.mark.parametrize("path", [DJANGO_REDIS, CORE_REDIS])
    def test_a_deploy_with_another_version_or_prefix_finds_the_same_locks(self, redis, path):
        where = {"LOCATION": django_settings.CACHES["default"]["LOCATION"]}
        mine = an_ask("video:1")
        granted(a_cache(path, **where, VERSION=1).acquire(mine))
        for others in (
            {"VERSION": 2},
            {"KEY_PREFIX": "site"},
            {"KEY_FUNCTION": "tests.contract.test_cache_backend.shout"},
        ):
            other = a_cache(path, **where, **others)
            assert isinstance(other.acquire(an_ask("video:1")), Busy)
            assert other.get("video:1").token == mine.token
        assert redis.exists("task_lock:video:1")

    def test_different_texts_have_different_keys_that_every_cache_can_bear(self):
        texts = [
            "task_lock:a",
            "task_lock:A",
            "task_lock:a ",
            "task_lock: a",
            "task_lock:é",
            "x" * 231,
            "x" * 230 + "y",
        ]
        keys = [cache_key(text) for text in texts]
        assert keys[0] == "task_lock:a"
        assert len(set(keys)) == len(keys)
        assert all(re.fullmatch("[!-~]{1,250}", key) and key == key.lower() for key in keys)
        assert cache_key(keys[1]) != keys[1], "a name that looks like a hashed key is hashed as well"

    def test_memcached_takes_every_name_and_gets_a_second_more_because_its_entries_end_early(self):
        backend = a_cache("tests.support.caches.FakeMemcached", LOCATION="x")
        FakeMemcached.timeouts.clear()
        for name in ("video:1", "a b", "é" * 200, "x" * 200):
            mine = an_ask(name, ttl=1500)
            granted(backend.acquire(mine))
            assert backend.get(name).name == name
            assert backend.release(name, mine.token) is Released.RELEASED
        assert FakeMemcached.timeouts[0] == 3

    def test_a_key_with_a_foreign_value_is_a_busy_lock(self, backend):
        backend.private.cache.set("task_lock:video:1", "by hand", 60)
        busy = backend.acquire(an_ask("video:1"))
        assert (busy.record.token, busy.remaining) == ("", None)
        assert backend.release("video:1", new_token()) is Released.NOT_YOURS
        assert backend.remove("video:1").token == ""


class TestLease:
    @pytest.mark.redis
    @pytest.mark.parametrize(("ttl", "seconds"), [(50, 1), (1001, 2)])
    def test_a_lease_lasts_whole_seconds_rounded_up_and_is_renewed(self, redis, ttl, seconds):
        backend = make("cache-django-redis")

        def seen() -> bool:
            mine = an_ask("video:1", ttl=ttl)
            granted(backend.acquire(mine))
            left = redis.pttl("task_lock:video:1")
            again = backend.acquire(an_ask("video:1", mine.token, ttl=60_000))
            if left < 0 or not isinstance(again, Grant):  # the machine stalled until it was over
                redis.delete("task_lock:video:1")
                return False
            assert (seconds - 1) * 1000 < left <= seconds * 1000
            assert 50_000 < redis.pttl("task_lock:video:1") <= 60_000
            assert backend.renew([Renewal("video:1", mine.token, 90_000)]) == [RenewalResult.RENEWED]
            return 80_000 < redis.pttl("task_lock:video:1") <= 90_000

        eventually(seen)


class TestLocalDeadline:
    """When the lease may be over by the local clock, the key may be another's by the time it is touched."""

    @pytest.fixture
    def held(self, backend, monkeypatch):
        """A lock, and a clock to move on while the cache still has it."""
        mine = an_ask("video:1", ttl=10_000)
        backend.acquire(mine)
        started = module.monotonic()
        return mine, lambda seconds: monkeypatch.setattr(module, "monotonic", lambda: started + seconds)

    @pytest.mark.parametrize(("seconds", "released"), [(8.5, True), (9.5, False), (10.5, False)])
    def test_a_release_about_the_deadline_leaves_it_to_the_cache(self, backend, held, seconds, released):
        mine, at = held
        at(seconds)
        assert backend.release("video:1", mine.token) is (Released.RELEASED if released else Released.GONE)
        assert (backend.get("video:1") is None) is released

    def test_a_renewal_moves_the_deadline(self, backend, held):
        mine, at = held
        at(9.5)
        assert backend.renew([Renewal("video:1", mine.token, 10_000)]) == [RenewalResult.RENEWED]
        at(17.0)
        assert backend.extend("video:1", mine.token, 10_000, 10_000) is True
        at(27.5)  # after it nothing is renewed or extended
        assert backend.renew([Renewal("video:1", mine.token, 10_000)]) == [RenewalResult.LOST]
        assert backend.extend("video:1", mine.token, 10_000, 10_000) is False

    def test_a_lock_that_changes_hands_between_look_and_touch_is_not_renewed(self, backend, monkeypatch):
        mine, other = an_ask("video:1"), an_ask("video:1")
        backend.acquire(mine)
        cache = backend.private.cache
        touch = type(cache).touch

        def take_it_first(self, *args, **kwargs):
            backend.remove("video:1")
            granted(backend.acquire(other))
            return touch(self, *args, **kwargs)

        monkeypatch.setattr(type(cache), "touch", take_it_first)
        assert backend.renew([Renewal("video:1", mine.token, 60_000)]) == [RenewalResult.LOST]
        assert backend.get("video:1").token == other.token


class TestStoreDown:
    @pytest.mark.parametrize("path", [DJANGO_REDIS, CORE_REDIS])
    def test_no_answer_is_an_error_even_where_the_client_is_told_to_ignore_it(self, path):
        options = {"OPTIONS": {"IGNORE_EXCEPTIONS": True}} if path == DJANGO_REDIS else {}
        with override_settings(DJANGO_REDIS_IGNORE_EXCEPTIONS=True):
            backend = a_cache(path, LOCATION=f"redis://127.0.0.1:{free_port()}/0", **options)
            mine = an_ask("video:1")
            for verb in (
                lambda: backend.acquire(mine),
                lambda: backend.release("video:1", mine.token),
                lambda: backend.renew([Renewal("video:1", mine.token, 1000)]),
                lambda: backend.get("video:1"),
            ):
                with pytest.raises(BackendUnavailable, match="could not be asked") as caught:
                    verb()
                assert caught.value.down

    def test_a_client_that_hides_its_errors_is_seen_through(self, backend):
        mine = an_ask("video:1")
        backend.acquire(mine)
        HidingCache.down = True
        for verb in (
            lambda: backend.acquire(an_ask("video:2")),
            lambda: backend.renew([Renewal("video:1", mine.token, 1000)]),
            lambda: backend.release("video:1", mine.token),
            lambda: backend.get("video:1"),
        ):
            with pytest.raises(BackendUnavailable, match="stores nothing"):
                verb()
        HidingCache.down = False
        assert backend.release("video:1", mine.token) is Released.RELEASED

    def test_a_lock_that_comes_and_goes_between_our_looks_is_busy_and_no_failure(self, backend, monkeypatch):
        key = "task_lock:video:1"
        add = HidingCache.add
        monkeypatch.setattr(HidingCache, "add", lambda self, k, *rest, **more: k != key and add(self, k, *rest, **more))
        assert backend.acquire(an_ask("video:1")) == Busy(None, 0)

    def test_an_alias_that_is_none_is_a_matter_of_settings(self):
        with pytest.raises(ImproperlyConfigured, match=r"'nowhere' is not an alias in CACHES; known: .*'default'"):
            CacheBackend(Settings(LOCATION="nowhere"))


READ_ONLY = {
    "sqlite": "PRAGMA query_only = 1",
    "postgresql": "SET default_transaction_read_only = on",
    "mysql": "SET SESSION TRANSACTION READ ONLY",
}


@pytest.mark.database
@pytest.mark.django_db(transaction=True)
class TestDatabaseCacheDown:
    """Django's ``DatabaseCache.add`` hides every error of its database."""

    @pytest.fixture
    def table(self, settings):
        settings.CACHES = {"locks": {"BACKEND": DATABASE_CACHE, "LOCATION": "tests_cache_of_locks"}}
        settings.TASKLOCK = {
            "BACKEND": "django_tasklock.backends.cache.CacheBackend",
            "LOCATION": "locks",
            "ON_UNAVAILABLE": "run",
        }
        call_command("createcachetable", verbosity=0)
        yield CacheBackend(Settings(LOCATION="locks"))
        connection.close()
        with connection.cursor() as cursor:
            cursor.execute("DROP TABLE IF EXISTS tests_cache_of_locks")

    def test_one_that_is_missing_or_may_not_be_written_refuses(self, table):
        """Others may hold the lock: no policy runs a body without it."""
        mine = an_ask("video:1")
        granted(table.acquire(mine))
        for statement, words in (
            (READ_ONLY[connection.vendor], "'locks' stores nothing.*full, or read-only"),
            ("DROP TABLE tests_cache_of_locks", "'locks' refused .*tests_cache_of_locks"),
        ):
            with connection.cursor() as cursor:
                cursor.execute(statement)
            with pytest.raises(BackendUnavailable, match=words) as caught:
                table.acquire(an_ask("video:2"))
            assert not caught.value.down
            with pytest.raises(BackendUnavailable, match=words):
                task_lock("video:2")(lambda: pytest.fail("it ran"))()
            connection.close()

    def test_one_that_nobody_reaches_is_an_outage(self, table, monkeypatch):
        connection.close()
        file = connection.vendor == "sqlite"  # nobody else need look for it there
        for key, value in ({"NAME": "/nowhere/db"} if file else {"HOST": "127.0.0.1", "PORT": free_port()}).items():
            monkeypatch.setitem(connection.settings_dict, key, value)
        with pytest.raises(BackendUnavailable, match="refused" if file else "could not be asked") as caught:
            table.acquire(an_ask("video:1"))
        assert caught.value.down is not file
        if not file:
            assert task_lock("video:1")(lambda: "ran")() == "ran"
        heartbeat.reconciler.clear()
        monkeypatch.undo()

    def test_no_lock_is_granted_that_a_rollback_would_undo(self, table):
        mine = an_ask("video:1")
        granted(table.acquire(mine))
        for write in (
            lambda: table.acquire(an_ask("video:2")),
            lambda: table.extend("video:1", mine.token, 60_000, 60_000),
        ):
            with transaction.atomic(), pytest.raises(TransactionOpen, match=r"the cache's table inside an open trans"):
                write()
        assert table.get("video:1").token == mine.token

    def test_an_entry_outlives_the_lease(self, table, monkeypatch):
        """Django cuts off the fraction of a second at which an entry ends, not of its length."""
        before = tz_now()
        granted(table.acquire(an_ask("video:1", ttl=1000)))
        monkeypatch.setattr("django.core.cache.backends.db.tz_now", lambda: before + timedelta(milliseconds=999))
        assert isinstance(table.acquire(an_ask("video:1")), Busy)
        assert table.get("video:1") is not None


class TestFence:
    def test_it_grows_even_if_the_next_clients_clock_is_behind(self, backend, monkeypatch):
        mine = an_ask("video:1")
        first = granted(backend.acquire(mine)).fence
        backend.release("video:1", mine.token)
        monkeypatch.setattr(module.time, "time_ns", lambda: 1_000_000_000_000)
        mine = an_ask("video:1")
        second = granted(backend.acquire(mine)).fence
        assert second == first + 1
        assert backend.get("video:1").fence == second
        assert granted(backend.acquire(mine)).fence == second


@pytest.mark.parametrize(
    ("alias", "shared", "words"),
    [
        ("default", True, None),
        ("core", True, None),
        ("dummy", False, "DummyCache stores nothing"),
        ("locmem", False, "one process only"),
        ("filebased", True, r"add\(\) is not atomic"),
    ],
)
def test_caches_that_cannot_lock_are_an_error(alias, shared, words):
    assert CacheBackend(Settings(LOCATION=alias)).across_processes is shared
    found = weakness(alias)
    if words is None:
        assert found is None
    else:
        assert found[0] == "error"
        assert re.search(words, found[1])


@pytest.mark.parametrize("vendor", ["postgresql", "mysql", "sqlite"])
def test_a_database_cache_is_weak_where_expired_rows_are_granted_to_several(vendor, monkeypatch):
    connection = type("Connection", (), {"vendor": vendor, "display_name": vendor.title()})()
    monkeypatch.setattr("django_tasklock.backends.cache.alias.connections", {"default": connection})
    found = weakness("db")
    if vendor == "sqlite":
        assert found is None
    else:
        assert found[0] == "warning"
        assert f"DatabaseCache on {vendor.title()} grants an expired entry" in found[1]


def shout(key, prefix, version):
    """A KEY_FUNCTION."""
    return f"{prefix}!{version}!{key}".upper()
