"""What people, other programs, time and the server itself do to our keys and scripts: the store heals or tells."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest
import redis
from django.core.cache import caches

from django_tasklock import (
    BackendUnavailable,
    LockLost,
    TaskLock,
    force_release_task_lock,
    get_lock_holder,
    get_lock_info,
    get_lock_ttl,
    is_task_locked,
    list_all_task_locks,
)
from django_tasklock.backends import get_backend
from django_tasklock.backends.contract import lists
from django_tasklock.backends.contract.lists import Counts, Query
from django_tasklock.backends.redis import RedisBackend
from django_tasklock.conf import Settings
from django_tasklock.types import Busy, Record, Released, Renewal, RenewalResult
from tests.support.redis_server import RedisServer
from tests.support.stores import an_ask, eventually, granted
from tests.support.twins import conflict

pytest_plugins = ["tests.support.redis_fixtures"]
pytestmark = pytest.mark.redis


INDEX = "task_lock#index"


@pytest.fixture
def key(name: str) -> str:
    """The lock's key, as one types it into redis-cli."""
    return f"task_lock:{name}"


def listed() -> list[str]:
    """The names of all held locks."""
    return [info.name for info in list_all_task_locks()]


# --- redis-cli


def test_get_and_ttl_say_what_people_expect(store: redis.Redis, name: str, key: str) -> None:
    with TaskLock(name, timeout=90, lease=30) as lock:
        assert store.type(key) == b"string"
        assert 0 < store.ttl(key) <= 30
        value = json.loads(store.get(key))
        assert list(value) == ["token", "holder", "at", "fence", "until"]
        assert value["token"] == lock.token
        assert re.fullmatch("[0-9a-f]{32}", value["token"])
        assert value["until"] - value["at"] == 90_000
        assert value["holder"].keys() >= {"host", "pid", "boot"}
    assert store.get(key) is None
    assert store.ttl(key) == -2


def test_del_frees_the_lock(store: redis.Redis, name: str, key: str) -> None:
    """Gold standard 8.44: the index heals, the holder is told, and the next one has it."""
    lock = TaskLock(name)
    lock.acquire()
    assert name in listed()
    store.delete(key)
    assert not is_task_locked(name)
    assert name not in listed()
    assert store.zscore(INDEX, key) is None
    next_one = an_ask(name)
    granted(get_backend().acquire(next_one))
    assert lock.release() is Released.NOT_YOURS
    assert get_backend().release(name, next_one.token) is Released.RELEASED


def test_queue_entries_of_dead_processes_are_skipped(store: redis.Redis, name: str) -> None:
    """Gold standard 8.28: places left by processes that died are skipped, whoever comes first: by the release, or by
    who finds that the holder died."""
    entries = {f"{index:032d} task_lock#wake:nobody{index} 3000 3600000 {{}}": index for index in range(50)}
    for ends in ("released", "died"):
        store.zadd(f"task_lock#queue:{name}", entries)
        holder = an_ask(name)
        granted(get_backend().acquire(holder))
        if ends == "released":
            assert get_backend().release(name, holder.token)
        else:
            store.delete(f"task_lock:{name}")
            granted(get_backend().acquire(an_ask(name)))
        assert not store.exists(f"task_lock#queue:{name}")


# --- what the server loses


def test_script_flush_between_verbs(store: redis.Redis, name: str) -> None:
    """Gold standard 8.34: scripts are sent again, whichever verb is first to miss its own."""
    backend = get_backend()
    lock = TaskLock(name)
    for verb, answer in (("acquire", True), ("extend", True), ("release", Released.RELEASED)):
        store.script_flush()
        assert getattr(lock, verb)() == answer
    ask = an_ask(name)
    store.script_flush()
    granted(backend.acquire(ask))
    store.script_flush()
    assert backend.get(name).token == ask.token
    store.script_flush()
    assert backend.renew([Renewal(name, ask.token, 60_000)]) == [RenewalResult.RENEWED]
    store.script_flush()
    assert name in [info.name for info in list_all_task_locks()]
    store.script_flush()
    assert force_release_task_lock(name) is True


def test_a_restart_between_verbs(configure: Any, redis_server: RedisServer, name: str) -> None:
    """Gold standard 8.34: neither script nor lock is there any more, and no answer pretends otherwise."""
    configure(LOCATION=redis_server.url)
    lock = TaskLock(name)
    for after in (lambda: lock.extend() is False and lock.lost, lambda: get_backend().get(name) is None):
        assert lock.acquire() is True
        redis_server.kill()
        redis_server.start()
        assert after()
        assert get_backend().renew([Renewal(name, lock.token, 60_000)]) == [RenewalResult.LOST]
        assert lock.release() is Released.GONE


def test_clearing_the_cache_clears_the_locks_in_its_database(
    settings: Any, redis_server: RedisServer, name: str
) -> None:
    """Not prevented, only never silent: the holder is told. The backend's docstring says to use another database."""
    assert "cache.clear()" in (RedisBackend.__doc__ or "")
    settings.CACHES = {"default": {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": redis_server.url}}
    settings.TASKLOCK = {"LOCATION": "default"}
    told: list[str] = []
    lock = TaskLock(name, on_lost=told.append)
    assert lock.acquire() is True
    caches["default"].clear()
    lock.require_lease().checked_at = 0.0
    with pytest.raises(LockLost):
        lock.ensure_held()
    eventually(lambda: told)
    assert lock.lost
    assert lock.release() is Released.GONE


def test_the_index_forgets_what_lapsed_long_ago(configure: Any, redis_server: RedisServer, name: str) -> None:
    """Gold standard 8.15: a little at a time, with the grants: it does not grow with the locks that ever lapsed."""
    configure(LOCATION=redis_server.url)
    with redis.Redis.from_url(redis_server.url) as private:
        private.zadd(INDEX, {f"task_lock:old{index}": index for index in range(1000)})
        grants = 0  # one in 64 forgets 128
        while private.zcard(INDEX) and grants < 5000:
            with TaskLock(name, lease=None):
                grants += 1
        assert private.zcard(INDEX) == 0


# --- what is not ours

FOREIGN = [b"locked", b"", b"\xff\xfe", b'{"token":1,"holder":[],"at":1e999}']


@pytest.mark.parametrize("value", FOREIGN, ids=repr)
def test_a_foreign_value_is_somebody_s_lock(store: redis.Redis, name: str, key: str, value: bytes) -> None:
    """The home-made lock of yesterday's release holds until it expires or is released by force."""
    store.set(key, value, ex=6000)
    lock = TaskLock(name)
    assert conflict("sync", lock).name == name
    assert (store.zscore(INDEX, key) or 0) / 1000 > store.time()[0] + 5000  # it is listed until then
    assert lock.acquire(blocking_timeout=0.05) is False
    assert store.get(key) == value
    assert is_task_locked(name)
    assert get_lock_holder(name) == "unknown"
    assert 5000 < (get_lock_ttl(name) or 0) <= 6000
    assert get_backend().release(name, "0" * 32) is Released.NOT_YOURS
    assert get_backend().extend(name, "0" * 32, 1000, 1000) is False
    assert get_backend().renew([Renewal(name, "0" * 32, 1000)]) == [RenewalResult.LOST]
    assert store.get(key) == value
    assert force_release_task_lock(name) is True
    assert lock.acquire() is True
    assert lock.release() is Released.RELEASED


def test_a_key_of_another_type_is_an_error_that_says_so(store: redis.Redis, name: str, key: str) -> None:
    store.rpush(key, "something else")
    with pytest.raises(
        BackendUnavailable, match=r"something else's: delete it, or choose another TASKLOCK\['KEY_PREFIX'\]"
    ):
        TaskLock(name, on_unavailable="raise").acquire()
    assert store.lrange(key, 0, -1) == [b"something else"]
    info = get_lock_info(name)  # that somebody has it, who cannot be told
    assert info is not None
    assert info.fence == 0
    store.delete(key)


# --- the index


@pytest.fixture
def backend(redis_server) -> Iterator[RedisBackend]:
    """Locks in a Redis of this test's own."""
    backend = RedisBackend(Settings(LOCATION=redis_server.url))
    yield backend
    backend.close()


@pytest.fixture
def cli(redis_server) -> Iterator[redis.Redis]:
    """What a person would type into redis-cli."""
    with redis.Redis.from_url(redis_server.url, decode_responses=True) as client:
        yield client


def fill(backend: RedisBackend, number: int = 12) -> list[str]:
    """So many locks, in the order in which they expire."""
    names = [f"video:{one:02}" for one in range(number)]
    for one, name in enumerate(names):
        granted(backend.acquire(an_ask(name, ttl=100_000 + one * 2000)))
    return names


def walk(backend: RedisBackend, which: str = "live", limit: int = 3) -> list[Record]:
    """All records, page by page."""
    query, found = Query(which, limit=limit), []
    while True:
        page = lists.page(backend, query)
        found += page.records
        if page.next is None:
            return found
        query = query._replace(offset=page.next)


def consistent(cli: redis.Redis) -> None:
    """The index has each lock that there is, and no other, where its expiry says; and there is no other index."""
    keys = sorted(cli.keys("task_lock:*"))
    assert sorted(cli.zrange(INDEX, 0, -1)) == keys
    seconds, micros = cli.time()
    now = seconds * 1000 + micros // 1000
    for key in keys:
        left = cli.pttl(key)
        assert cli.zscore(INDEX, key) == float("inf") if left < 0 else abs(cli.zscore(INDEX, key) - now - left) < 2000


@pytest.mark.parametrize("part", [3, 5, 50])
def test_deleted_ones_are_listed_no_more_and_hide_no_other(backend, cli, monkeypatch, part):
    """Gold standard 8.44: wherever a list is parted."""
    monkeypatch.setattr(lists, "PART", part)
    names = fill(backend)
    gone = {name for number, name in enumerate(names) if number % 3}
    cli.delete(*(f"task_lock:{name}" for name in gone))
    assert [one.name for one in lists.read(backend)[0]] == [name for name in names if name not in gone]
    for limit in (1, 3, 50):
        assert [one.name for one in walk(backend, limit=limit)] == [name for name in names if name not in gone]
    consistent(cli)
    assert backend.counts() == Counts(4, 0, 0, 0)
    cli.delete(*cli.keys("task_lock:*"))
    assert lists.page(backend, Query(limit=1)) == ([], 0, None, False)


def test_one_that_was_given_another_time_or_none_is_met_once(backend, cli):
    """``PERSIST`` and ``PEXPIRE``, both ways."""
    names = fill(backend)
    cli.persist("task_lock:video:04")
    cli.pexpire("task_lock:video:02", 500_000)
    cli.pexpire("task_lock:video:07", 20_000)
    assert sorted(record.name for record in walk(backend)) == names
    found = walk(backend)
    assert [found[0].name, found[-2].name, found[-1].name] == ["video:07", "video:02", "video:04"]
    assert found[0].ttl <= 20_000
    assert found[-2].ttl > 400_000
    assert [record.name for record in found if record.ttl is None] == ["video:04"]
    assert [record.name for record in walk(backend, "no_expiry")] == ["video:04"]
    assert backend.counts() == Counts(12, 0, 1, 0)
    consistent(cli)


def test_a_lock_without_an_end_is_given_one_by_the_token_that_was_seen(backend, cli):
    mine = an_ask("video:1")
    backend.acquire(mine)
    cli.persist("task_lock:video:1")
    assert backend.get("video:1").ttl is None
    assert backend.set_expiry("video:1", "f" * 32, 5000) is False
    assert backend.set_expiry("video:1", "", 5000) is False
    assert backend.get("video:1").ttl is None
    assert backend.set_expiry("video:1", mine.token, 5000) is True
    assert 0 < backend.get("video:1").ttl <= 5000
    assert backend.counts() == Counts(1, 1, 0, 0)
    assert backend.set_expiry("video:1", mine.token, 9000) is False
    consistent(cli)


def test_an_operator_can_end_and_remove_a_value_that_is_not_ours(backend, cli):
    """``SET task_lock:6 1``: it holds everybody up, so whoever looks must find it; over a lock, it is lost."""
    mine = an_ask("6")
    backend.acquire(mine)
    cli.set("task_lock:6", "1")
    assert isinstance(backend.acquire(an_ask("6")), Busy)
    (record,) = walk(backend)
    assert (record.name, record.token, record.ttl) == ("6", "", None)
    assert backend.counts() == Counts(1, 0, 1, 0)
    assert backend.release("6", mine.token) is Released.NOT_YOURS
    for wrong in (mine.token, "f" * 32):
        assert backend.set_expiry("6", wrong, 1000) is False
        assert backend.remove("6", wrong) is None
    assert backend.ask_release("6", "") is False
    assert backend.set_expiry("6", "", 60_000) is True
    assert 0 < backend.get("6").ttl <= 60_000
    assert backend.remove("6", "").token == ""
    granted(backend.acquire(an_ask("6")))
    consistent(cli)


def test_a_lapsed_entry_whose_lock_exists(backend, cli):
    """An index that is behind (restored, or written by hand) costs nobody a lock."""
    fill(backend, 3)
    cli.zadd(INDEX, {"task_lock:video:00": 1000, "task_lock:video:01": 2000})
    cli.persist("task_lock:video:01")
    assert backend.counts().orphaned == 2
    assert backend.prune(10) == 0
    assert backend.counts() == Counts(3, 0, 1, 0)
    cli.zadd(INDEX, {"task_lock:video:00": 1000})
    assert walk(backend, "orphaned") == []
    assert backend.counts() == Counts(3, 0, 1, 0)
    consistent(cli)


def test_an_index_that_is_gone(backend, cli):
    """Gold standard 8.44: locks hold without it, and are listed again with their next renewal, or caller."""
    mine, busy = an_ask("video:1"), an_ask("video:2")
    for ask in (mine, busy):
        backend.acquire(ask)
    cli.delete(INDEX)
    assert walk(backend) == []
    assert backend.extend("video:1", mine.token, 60_000, 60_000) is True
    assert isinstance(backend.acquire(an_ask("video:2")), Busy)
    assert [record.name for record in walk(backend)] == ["video:2", "video:1"]
    assert backend.release("video:2", busy.token) is Released.RELEASED
    assert backend.release("video:1", mine.token) is Released.RELEASED
    consistent(cli)


def test_locks_in_their_last_millisecond(backend, cli):
    """Redis says that they have none left, and time stands still for a script: it must not wait for their end."""
    for _ in range(30):
        pipeline = cli.pipeline()
        for number in range(20):
            pipeline.set(f"task_lock:video:{number}", "x", px=1 + number % 5)
            pipeline.zadd(INDEX, {f"task_lock:video:{number}": 0})
        pipeline.execute()
        walk(backend, "orphaned")
        for _ in range(5):
            backend.prune(100)


def test_an_index_of_dead_entries_does_not_empty_a_page(backend, cli):
    """Gold standard 8.15: more than one script repairs, before the only lock that lives."""
    cli.zadd(INDEX, {f"task_lock:dead:{number}": number + 1 for number in range(12_000)})
    backend.acquire(an_ask("alive"))
    for query in (Query(limit=10), Query(order="age", limit=10)):
        page = lists.page(backend, query)
        assert [record.name for record in page.records] == ["alive"]
        assert (page.next, page.total) == (None, 1)
