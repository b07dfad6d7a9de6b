"""Lists over the buckets of a Redis Cluster: one order, every lock once."""

from __future__ import annotations

import random

import pytest

from django_tasklock.backends.contract.queries import Query
from django_tasklock.backends.redis.script import Script
from tests.support.cluster_acts import key_of, slot_of
from tests.support.stores import an_ask, granted

pytest_plugins = ["tests.support.cluster_fixtures"]
pytestmark = [pytest.mark.redis, pytest.mark.slow]


SAME = Script(
    "for _, key in ipairs(redis.call('ZRANGE', KEYS[1], 0, -1)) do"
    " redis.call('ZADD', KEYS[1], 32503680000000, key) redis.call('PEXPIREAT', key, 32503680000000) end return 1",
    1,
    1,
)


@pytest.mark.parametrize("order", ["expiry", "age", "left"])
@pytest.mark.parametrize("down", [False, True])
def test_walked_in_order(backend, order, down):
    randomly = random.Random(7)
    asks = [
        an_ask(f"video:{number}", ttl=randomly.randrange(20_000, 90_000), hold=randomly.randrange(10**5, 10**7))
        for number in range(150)
    ]
    for ask in asks:
        granted(backend.acquire(ask))
    offset, found = 0, []
    while offset is not None:
        page = backend.page(Query(order=order, descending=down, offset=offset, limit=17))
        assert page.total == 150
        found += page.records
        offset = page.next
    keys = {
        "expiry": lambda one: one.now + one.ttl,
        "age": lambda one: -(one.fence if one.at * 1000 <= one.fence < (one.at + 1) * 1000 else one.at * 1000),
        "left": lambda one: one.until,
    }
    told = [keys[order](one) for one in found]
    assert len({one.name for one in found}) == len(found) == 150
    assert told == sorted(told, reverse=down)


@pytest.mark.parametrize("down", [False, True])
def test_what_is_looked_for_is_found_once_and_in_order(backend, down, monkeypatch):
    from django_tasklock.backends.cluster import listing

    monkeypatch.setattr(listing, "MOST", 40)
    for number in range(200):
        granted(backend.acquire(an_ask(f"{'even' if number % 2 == 0 else 'odd'}:{number}", ttl=30_000 + number)))
    offset, found, pages = 0, [], 0
    while offset is not None:
        page = backend.page(Query(text="even", descending=down, offset=offset, limit=6))
        assert len(page.records) <= 6
        assert page.next is None or page.next > offset
        found += [record.name for record in page.records]
        offset, pages = page.next, pages + 1
    wanted = [f"even:{number}" for number in range(0, 200, 2)]
    assert found == wanted[:: -1 if down else 1]
    assert pages > 10


def test_many_of_one_millisecond(backend):
    """Each is read once: they are in the order of their buckets."""
    for number in range(60):
        granted(backend.acquire(an_ask(f"video:{number}")))
    for number in backend.numbers:
        index = backend.bucket(number).layout.index
        backend.ask_all([backend.ask(number, SAME, index)])
    found: list[str] = []
    for offset in range(0, 60, 7):
        found += [record.name for record in backend.page(Query(offset=offset, limit=7)).records]
    assert sorted(found) == sorted(f"video:{number}" for number in range(60))


def test_no_expiry_comes_last(cluster, backend):
    for number in range(20):
        granted(backend.acquire(an_ask(f"video:{number}")))
    for number in range(0, 20, 2):
        cluster.serving(slot_of(f"video:{number}")).client.persist(key_of(f"video:{number}"))
    for _ in range(2):
        backend.page(Query(order="left", limit=20))
    assert backend.counts().no_expiry == 10
    found = []
    for offset in range(0, 20, 3):
        found += backend.page(Query(offset=offset, limit=3)).records
    assert [record.ttl is None for record in found] == [False] * 10 + [True] * 10
    assert len({record.name for record in found}) == 20
    assert backend.page(Query("no_expiry", limit=4, offset=8)).next is None
