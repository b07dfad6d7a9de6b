"""The index of the locks in Redis: what is done to keys by hand, or by the server, is put right where it is met."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import redis

from django_tasklock.backends.contract import lists
from django_tasklock.backends.contract.lists import Counts, Query
from django_tasklock.backends.redis import RedisBackend
from django_tasklock.conf import Settings
from django_tasklock.types import Busy, Record, Released
from tests.support.stores import an_ask, eventually, granted

pytest_plugins = ["tests.support.redis_fixtures"]
pytestmark = pytest.mark.redis

INDEX = "task_lock#index"


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


def test_deleted_ones_are_listed_no_more_and_hide_no_other(backend, cli):
    """Gold standard 8.44."""
    names = fill(backend)
    gone = {name for number, name in enumerate(names) if number % 3}
    cli.delete(*(f"task_lock:{name}" for name in gone))
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


LONG = '{"token":"a","holder":{"host":"%s"},"at":1,"fence":1,"until":2}' % ("x" * 20_000)


@pytest.mark.parametrize(
    ("disturb", "lost"),
    [
        pytest.param(lambda cli: cli.delete("task_lock:video:07"), {"video:07"}, id="deleted"),
        pytest.param(lambda cli: cli.set("task_lock:video:07", LONG, keepttl=True), set(), id="a long value"),
        pytest.param(lambda cli: cli.persist("task_lock:video:07"), set(), id="never expires"),
        pytest.param(lambda cli: cli.pexpire("task_lock:video:07", 50_000), set(), id="expires before all others"),
        pytest.param(lambda cli: cli.pexpire("task_lock:video:07", 500_000), set(), id="expires after all others"),
    ],
)
def test_what_is_changed_by_hand_hides_no_other_wherever_a_list_is_parted(
    backend, cli, monkeypatch, disturb: Callable[[redis.Redis], object], lost
):
    names = fill(backend, 20)
    disturb(cli)
    for size in (3, 7, 8, 9, 50):
        monkeypatch.setattr(lists, "PART", size)
        assert {record.name for record in lists.read(backend)[0]} == set(names) - lost
    assert [record.name for record in lists.read(backend)[0]] == [record.name for record in backend.records()]
    assert backend.counts().live == cli.zcard(INDEX) == 20 - len(lost)
    assert backend.counts().no_expiry == sum(record.ttl is None for record in backend.records())


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


@pytest.mark.parametrize("value", ["1", '{"token":""}', "\xff"])
def test_a_value_that_is_not_ours(backend, cli, value):
    """``SET task_lock:6 1``: it holds everybody up, so whoever looks must find it; over a lock, it is lost."""
    mine = an_ask("6")
    backend.acquire(mine)
    cli.set("task_lock:6", value)
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
    """Locks are keys: they hold without an index, and are listed again with their next renewal, or caller."""
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


@pytest.mark.slow
@pytest.mark.parametrize("ended", [True, False], ids=["lapsed", "deleted"])
def test_an_index_of_dead_entries_does_not_empty_a_page(backend, cli, ended):
    """Gold standard 8.15: more than one script puts right, before the only lock that lives. Deleted ones are taken for
    live ones until they are met."""
    now = int(cli.time()[0]) * 1000
    cli.zadd(INDEX, {f"task_lock:dead:{number}": number + (1 if ended else now + 30_000) for number in range(12_000)})
    backend.acquire(an_ask("alive"))
    for query in (Query(limit=10), Query(order="age", limit=10)):
        page = lists.page(backend, query)
        assert [record.name for record in page.records] == ["alive"]
        assert page.next is None
    assert lists.page(backend, Query()).total == 1


def test_the_end_of_a_lease_reads_alike_each_time(backend):
    """To the millisecond: who reads page by page knows by it that nothing has moved meanwhile."""
    for number in range(20):
        granted(backend.acquire(an_ask(f"video:{number}", ttl=60_000 + number)))
    reads = (backend.records(limit=1000) for _ in range(100))
    assert len({tuple(record.now + (record.ttl or 0) for record in read) for read in reads}) == 1


def test_what_lapsed_is_forgotten(backend, cli):
    for number in range(30):
        backend.acquire(an_ask(f"dead:{number}", ttl=1 + number))
    eventually(lambda: cli.keys("task_lock:*") == [])
    assert backend.counts() == Counts(0, 0, 0, 30)
    assert backend.prune(1000) == 30
    assert cli.zcard(INDEX) == 0
