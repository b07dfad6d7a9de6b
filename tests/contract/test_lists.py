"""Lists above every store: complete whatever moves meanwhile; ten thousand locks are filtered and sorted, no more."""

from __future__ import annotations

import pytest
import redis

from django_tasklock import list_all_task_locks
from django_tasklock.backends import get_backend
from django_tasklock.backends.contract import lists
from django_tasklock.backends.contract.lists import Query
from django_tasklock.backends.contract.stores import LockStore
from django_tasklock.backends.redis import RedisBackend
from django_tasklock.conf import Settings
from django_tasklock.types import Renewal
from tests.support.stores import LISTING, an_ask, clear, granted, make, stores

pytest_plugins = ["tests.support.redis_fixtures"]

LONG = '{"token":"a","holder":{"host":"%s"},"at":1,"fence":1,"until":2}' % ("x" * 20_000)


@pytest.fixture(params=stores(*LISTING))
def backend(request) -> LockStore:
    """A backend with an empty store."""
    clear(request.param)
    backend = make(request.param)
    yield backend
    backend.close_idle()
    backend.close()


def fill(backend: LockStore, number: int) -> list[str]:
    """So many locks, in the order in which they expire."""
    names = [f"video:{one:02}" for one in range(number)]
    for one, name in enumerate(names):
        granted(backend.acquire(an_ask(name, name * 4, ttl=100_000 + one * 1000, hold=900_000 - one * 1000)))
    return names


def read(backend: LockStore) -> list[str]:
    """The names of all, in the order in which they are found."""
    return [record.name for part in lists.each(backend) for record in part]


@pytest.mark.parametrize("size", [2, 3, 7, 19, 20, 21, 50])
def test_parts_of_any_size_make_one_list(backend, monkeypatch, size):
    monkeypatch.setattr(lists, "PART", size)
    names = fill(backend, 20)
    assert read(backend) == names
    assert lists.read(backend)[1] is False
    by_left = lists.page(backend, Query(order="left", offset=2, limit=3))
    assert [record.name for record in by_left.records] == list(reversed(names))[2:5]
    assert (by_left.total, by_left.next, by_left.more) == (20, 5, False)


@pytest.mark.parametrize("moved", [range(1), range(3), range(3, 7), range(12), range(4, 20), range(20)])
def test_what_is_renewed_or_released_between_two_parts_hides_no_other(backend, monkeypatch, moved):
    monkeypatch.setattr(lists, "PART", 5)
    names = fill(backend, 20)
    found: list[str] = []
    for number, part in enumerate(lists.each(backend)):
        found += [record.name for record in part]
        if number == 0:
            backend.renew([Renewal(names[one], names[one] * 4, 500_000) for one in moved])
        if number == 1:
            for one in range(3):
                backend.release(names[one], names[one] * 4)
    assert sorted(found) == names
    assert len(found) == len(set(found))


def test_of_more_than_are_sorted_a_page_says_that_there_are_more(backend, monkeypatch):
    monkeypatch.setattr(lists, "PART", 3)
    names = fill(backend, 8)
    for most, more in ((7, True), (8, False), (9, False)):
        monkeypatch.setattr(lists, "MOST", most)
        for query in (
            Query(order="age"),
            Query(order="left"),
            Query(descending=True),
            Query(text="video"),
            Query(text="nothing"),
        ):
            page = lists.page(backend, query)
            assert page.more is more
            wanted = names[:most] if query.text != "nothing" else []
            assert (sorted(record.name for record in page.records), page.total) == (wanted, len(wanted))
        plain = lists.page(backend, Query(limit=5))
        assert (plain.total, plain.next, plain.more) == (8, 5, False)
        assert [record.name for record in lists.page(backend, Query(offset=5)).records] == names[5:]
    assert [record.name for record in lists.page(backend, Query(), lambda one: one.name > names[5]).records] == names[
        6:
    ]


@pytest.mark.redis
class TestRedis:
    @pytest.fixture
    def backend(self, redis_server) -> RedisBackend:
        """Locks in a Redis of this test's own."""
        backend = RedisBackend(Settings(LOCATION=redis_server.url))
        yield backend
        backend.close()

    @pytest.mark.parametrize(
        ("disturb", "lost"),
        [
            pytest.param(lambda cli: cli.delete("task_lock:video:07"), {"video:07"}, id="deleted by hand"),
            pytest.param(lambda cli: cli.zadd("task_lock#queue:video:07", {"somebody": 1}), set(), id="somebody waits"),
            pytest.param(lambda cli: cli.set("task_lock:video:07", LONG, keepttl=True), set(), id="a long value"),
            pytest.param(lambda cli: cli.persist("task_lock:video:07"), set(), id="never expires"),
            pytest.param(lambda cli: cli.pexpire("task_lock:video:07", 50_000), set(), id="expires before all others"),
            pytest.param(lambda cli: cli.pexpire("task_lock:video:07", 500_000), set(), id="expires after all others"),
        ],
    )
    @pytest.mark.parametrize("size", [3, 7, 8, 9, 50])
    def test_what_is_changed_by_hand_between_two_parts_hides_no_other(
        self, backend, redis_server, monkeypatch, disturb, lost, size
    ):
        monkeypatch.setattr(lists, "PART", size)
        names = fill(backend, 20)
        with redis.Redis.from_url(redis_server.url) as cli:
            disturb(cli)
            assert set(read(backend)) == set(names) - lost
            assert read(backend) == [record.name for record in backend.records()]
            assert backend.counts().live == cli.zcard("task_lock#index") == 20 - len(lost)
            assert backend.counts().no_expiry == sum(record.ttl is None for record in backend.records())


@pytest.mark.redis
@pytest.mark.slow
def test_ten_thousand_and_one(settings):
    """As they are: all are listed, and ten thousand sorted."""
    clear("redis")
    backend = get_backend()
    for number in range(10_001):
        backend.acquire(an_ask(f"video:{number}", ttl=3_600_000 + number * 10))
    assert [info.name for info in list_all_task_locks()] == [f"video:{number}" for number in range(10_001)]
    page = lists.page(backend, Query(order="age", limit=10))
    assert (page.total, page.more) == (10_000, True)
    assert lists.page(backend, Query(offset=10_000)).records[0].name == "video:10000"
