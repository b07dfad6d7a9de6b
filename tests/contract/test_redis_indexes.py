"""The index of the locks in Redis: what is done to keys by hand, or by the server, is put right where it is met."""

from __future__ import annotations

import pytest
import redis

from django_tasklock.backends.contract import lists
from django_tasklock.backends.contract.lists import Counts, Query
from django_tasklock.backends.redis import RedisBackend
from django_tasklock.types import Busy, Released
from tests.support.stores import an_ask, eventually, granted

pytest_plugins = ["tests.support.redis_fixtures"]
pytestmark = [pytest.mark.redis, pytest.mark.slow]

INDEX = "task_lock#index"
ORDERS = [(order, down) for order in ("expiry", "age", "left") for down in (False, True)]
READINGS = [pytest.param(order, down, id=f"{order}-{'down' if down else 'up'}") for order, down in ORDERS]


@pytest.fixture
def backend(redis_server) -> RedisBackend:
    """Locks in a Redis of this test's own."""
    from django_tasklock.conf import Settings

    backend = RedisBackend(Settings(LOCATION=redis_server.url))
    yield backend
    backend.close()


@pytest.fixture
def cli(redis_server) -> redis.Redis:
    """What a person would type into redis-cli."""
    with redis.Redis.from_url(redis_server.url, decode_responses=True) as client:
        yield client


def fill(backend: RedisBackend, count: int = 12) -> list[str]:
    """Locks whose three orders are all different."""
    names = [f"video:{number}" for number in range(count)]
    for number, name in enumerate(names):
        lease, hold = 100_000 + number * 7919 % count * 2000, 200_000 + number * 104_729 % count * 2000
        granted(backend.acquire(an_ask(name, ttl=lease, hold=hold)))
        eventually(lambda name=name: (record := backend.get(name)).now > record.at)
    return names


def walk(backend: RedisBackend, order: str = "expiry", down: bool = False, limit: int = 3, which: str = "live"):
    """All records, page by page."""
    query, found = Query(which, order, down, limit=limit), []
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


@pytest.mark.parametrize(("order", "down"), READINGS)
class TestEachReadingHeals:
    def test_deleted(self, backend, cli, order, down):
        """Gold standard 8.44. Nothing that stays is missed or met twice meanwhile."""
        names = fill(backend)
        before = [record.name for record in walk(backend, order, down)]
        gone = {name for number, name in enumerate(names) if number % 3}
        cli.delete(*(f"task_lock:{name}" for name in gone))
        for limit in (1, 3, 50):
            assert [one.name for one in walk(backend, order, down, limit)] == [one for one in before if one not in gone]
        consistent(cli)
        assert backend.counts() == Counts(4, 0, 0, 0)

    def test_deleted_all(self, backend, cli, order, down):
        cli.delete(*(f"task_lock:{name}" for name in fill(backend, 3)))
        assert lists.page(backend, Query(order=order, descending=down, limit=1)).records == []
        assert lists.page(backend, Query(order=order, descending=down, limit=1)).next is None

    def test_made_to_live_for_ever(self, backend, cli, order, down):
        """``PERSIST``: shown as without expiry, everywhere, and met once."""
        names = fill(backend)
        cli.persist("task_lock:video:4")
        found = walk(backend, order, down)
        assert sorted(record.name for record in found) == sorted(names)
        assert [record.name for record in found if record.ttl is None] == ["video:4"]
        assert [record.name for record in walk(backend)][-1] == "video:4"
        assert [record.name for record in walk(backend, which="no_expiry")] == ["video:4"]
        assert backend.counts() == Counts(12, 0, 1, 0)
        consistent(cli)

    def test_given_another_time(self, backend, cli, order, down):
        """``PEXPIRE``: both ways, each is met once."""
        names = fill(backend)
        cli.pexpire("task_lock:video:2", 500_000)
        cli.pexpire("task_lock:video:7", 20_000)
        found = walk(backend, order, down)
        assert sorted(record.name for record in found) == sorted(names)
        left = {record.name: record.ttl for record in found}
        assert left["video:2"] > 400_000
        assert left["video:7"] <= 20_000
        walk(backend)
        order_now = [record.name for record in walk(backend)]
        assert (order_now[0], order_now[-1]) == ("video:7", "video:2")
        consistent(cli)


class TestByHand:
    def test_bound_ends_what_would_live_for_ever(self, backend, cli):
        mine = an_ask("video:1")
        backend.acquire(mine)
        cli.persist("task_lock:video:1")
        assert [record.ttl for record in walk(backend, which="live")] == [None]
        assert [record.name for record in walk(backend, which="no_expiry")] == ["video:1"]
        assert backend.set_expiry("video:1", "f" * 32, 5000) is False
        assert backend.set_expiry("video:1", "", 5000) is False
        assert backend.get("video:1").ttl is None
        assert backend.set_expiry("video:1", mine.token, 5000) is True
        assert 0 < backend.get("video:1").ttl <= 5000
        assert backend.counts() == Counts(1, 1, 0, 0)
        assert backend.set_expiry("video:1", mine.token, 9000) is False
        consistent(cli)

    @pytest.mark.parametrize("value", ["1", "", "{}", '{"token": "x"}', '{"token":""}', "locked by bob", "\xff"])
    def test_a_value_that_is_not_ours(self, backend, cli, value):
        """``SET task_lock:6 1``: it holds everybody up, so whoever looks must find it."""
        cli.set("task_lock:6", value)
        answer = backend.acquire(an_ask("6"))
        assert isinstance(answer, Busy)
        for order, down in ORDERS:
            (record,) = walk(backend, order, down)
            assert (record.name, record.token, record.ttl) == ("6", "", None)
        assert backend.counts() == Counts(1, 0, 1, 0)
        assert backend.remove("6", "f" * 32) is None
        assert backend.ask_release("6", "") is False
        assert backend.set_expiry("6", "", 60_000) is True
        assert 0 < backend.get("6").ttl <= 60_000
        assert backend.remove("6", "").token == ""
        granted(backend.acquire(an_ask("6")))
        consistent(cli)

    def test_set_over_a_lock(self, backend, cli):
        """Its expiry goes with it; the holder finds the lock lost and touches nothing."""
        mine = an_ask("6")
        backend.acquire(mine)
        cli.set("task_lock:6", "bob")
        assert [record.ttl for record in walk(backend)] == [None]
        assert backend.release("6", mine.token) is Released.NOT_YOURS
        assert backend.set_expiry("6", mine.token, 1000) is False
        assert backend.remove("6", mine.token) is None
        assert backend.set_expiry("6", "", 1000) is True
        eventually(lambda: backend.get("6") is None)
        assert [record.name for record in walk(backend, which="orphaned")] == ["6"]
        granted(backend.acquire(an_ask("6")))
        consistent(cli)

    def test_a_key_of_another_type_hides_no_other(self, backend, cli):
        fill(backend, 3)
        cli.delete("task_lock:video:1")
        cli.rpush("task_lock:video:1", "x")
        for order, down in ORDERS:
            assert {record.name for record in walk(backend, order, down)} == {"video:0", "video:1", "video:2"}

    def test_a_lapsed_entry_whose_lock_exists(self, backend, cli):
        """An index that is behind (restored, or written by hand) costs nobody a lock."""
        fill(backend, 3)
        cli.zadd(INDEX, {"task_lock:video:0": 1000, "task_lock:video:1": 2000})
        cli.persist("task_lock:video:1")
        assert backend.counts().orphaned == 2
        assert backend.prune(10) == 0
        assert backend.counts() == Counts(3, 0, 1, 0)
        cli.zadd(INDEX, {"task_lock:video:0": 1000})
        assert walk(backend, which="orphaned") == []
        assert backend.counts() == Counts(3, 0, 1, 0)
        consistent(cli)

    def test_what_lapsed_is_forgotten(self, backend, cli):
        for number in range(30):
            backend.acquire(an_ask(f"dead:{number}", ttl=1 + number))
        eventually(lambda: cli.keys("task_lock:*") == [])
        assert backend.counts() == Counts(0, 0, 0, 30)
        assert backend.prune(1000) == 30
        assert cli.zcard(INDEX) == 0

    def test_locks_in_their_last_millisecond(self, backend, cli):
        """Redis says that they have none left, and time stands still for a script: it must not wait for their end."""
        for _ in range(100):
            pipeline = cli.pipeline()
            for number in range(20):
                pipeline.set(f"task_lock:video:{number}", "x", px=1 + number % 5)
                pipeline.zadd(INDEX, {f"task_lock:video:{number}": 0})
            pipeline.execute()
            walk(backend, which="orphaned")
            for _ in range(5):
                backend.prune(100)

    def test_an_index_that_is_gone(self, backend, cli):
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


def test_an_index_of_lapsed_locks_does_not_empty_a_page(backend, cli):
    """Gold standard 8.15: more than one script puts right, before the only lock that lives."""
    dead = {f"task_lock:dead:{number}": number + 1 for number in range(12_000)}
    cli.zadd(INDEX, dead)
    backend.acquire(an_ask("alive"))
    for order, down in ORDERS:
        page = lists.page(backend, Query(order=order, descending=down, limit=10))
        assert [record.name for record in page.records] == ["alive"]
        assert (page.total, page.next) == (1, None)
    assert cli.zcard(INDEX) in (12_001, 12_001 - 128), "every 64th grant forgets some"


@pytest.mark.parametrize(("order", "down"), READINGS)
def test_nor_does_one_of_locks_that_were_deleted(backend, cli, order, down):
    """They are taken for live ones until they are met: 5000 by one script."""
    now = int(cli.time()[0]) * 1000
    cli.zadd(INDEX, {f"task_lock:dead:{number}": now + 30_000 + number for number in range(12_000)})
    backend.acquire(an_ask("alive"))
    page = lists.page(backend, Query(order=order, descending=down, limit=10))
    assert [record.name for record in page.records] == ["alive"]
    assert [record.name for record in walk(backend, order, down)] == ["alive"]
    assert cli.zcard(INDEX) == 1


def test_what_expired_long_ago_goes_with_later_grants(backend: RedisBackend, cli: redis.Redis) -> None:
    """Without a sweep, too: every 64th grant removes some, so the index of many names does not grow for ever."""
    cli.zadd(INDEX, {f"task_lock:dead:{number}": number + 1 for number in range(100)})

    def gone() -> bool:
        ask = an_ask("alive")
        granted(backend.acquire(ask))
        assert backend.release(ask.name, ask.token) is Released.RELEASED
        return cli.zcard(INDEX) == 0

    eventually(gone)


def test_the_end_of_a_lease_reads_alike_each_time(backend: RedisBackend) -> None:
    """To the millisecond: who reads page by page knows by it that nothing has moved meanwhile."""
    asks = [an_ask(f"video:{number}", ttl=60_000 + number) for number in range(20)]
    for ask in asks:
        granted(backend.acquire(ask))
    ends = {tuple(record.now + (record.ttl or 0) for record in backend.records(limit=1000)) for _ in range(300)}
    assert len(ends) == 1
