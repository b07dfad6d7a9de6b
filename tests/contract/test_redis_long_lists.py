"""Long lists in Redis: as the index has them, unless something in them is to be put right."""

from __future__ import annotations

import pytest
import redis

from django_tasklock.backends.contract.queries import Query
from django_tasklock.backends.redis import RedisBackend
from tests.support.stores import an_ask, granted

pytest_plugins = ["tests.support.redis_fixtures"]
pytestmark = pytest.mark.redis

LOCKS = 1200
LONG = '{"token":"a","holder":{"host":"%s"},"at":1,"fence":1,"until":2}' % ("x" * 20_000)


@pytest.fixture
def backend(redis_server) -> RedisBackend:
    """More locks than a list is long in which each is asked for its time left."""
    from django_tasklock.conf import Settings

    backend = RedisBackend(Settings(LOCATION=redis_server.url))
    for number in range(LOCKS):
        granted(backend.acquire(an_ask(f"video:{number}", ttl=3_600_000 + number * 1000)))
    yield backend
    backend.close()


@pytest.fixture
def cli(redis_server) -> redis.Redis:
    """What a person would type into redis-cli."""
    with redis.Redis.from_url(redis_server.url, decode_responses=True) as client:
        yield client


def careful(backend: RedisBackend) -> list:
    """All records, in short pages."""
    found, query = [], Query(limit=500)
    while True:
        page = backend.page(query)
        found += page.records
        if page.next is None:
            return found
        query = query._replace(offset=page.next)


def told(records) -> list[tuple]:
    """What two readings have alike: ``ttl`` is that of their moments."""
    return [
        (one.name, one.token, one.holder.unreadable, one.waiting, one.ttl is None or one.ttl + one.now)
        for one in records
    ]


def commands(cli: redis.Redis, name: str) -> int:
    """How many of these the server has run."""
    return cli.info("commandstats").get(f"cmdstat_{name}", {}).get("calls", 0)


def test_no_lock_is_asked_for_its_time_left(backend, cli):
    before = commands(cli, "pttl")
    long = backend.records(limit=5000)
    assert commands(cli, "pttl") == before
    assert told(long) == told(careful(backend))
    assert [record.holder.host for record in long[:2]] == ["", ""]


@pytest.mark.parametrize("offset", [0, 1, 199, 1199, 1200])
def test_from_anywhere(backend, offset):
    found = backend.records(limit=1000, offset=offset)
    assert told(found) == told(careful(backend))[offset : offset + 1000]


@pytest.mark.parametrize(
    "disturb",
    [
        pytest.param(lambda cli: cli.zadd("task_lock#queue:video:700", {"somebody": 1}), id="somebody waits"),
        pytest.param(lambda cli: cli.delete("task_lock:video:700"), id="deleted by hand"),
        pytest.param(lambda cli: cli.set("task_lock:video:700", LONG, keepttl=True), id="a long value"),
        pytest.param(lambda cli: (cli.delete("task_lock:video:7"), cli.lpush("task_lock:video:7", "x")), id="a list"),
        pytest.param(
            lambda cli: (cli.persist("task_lock:video:7"), cli.zadd("task_lock#index", {"task_lock:video:7": "inf"})),
            id="never expires",
        ),
    ],
)
def test_what_is_to_be_looked_at_is(backend, cli, disturb):
    disturb(cli)
    long = told(backend.records(limit=5000))
    assert long == told(careful(backend))


def test_a_list_of_few_asks_each_whatever_its_limit(backend, cli):
    for number in range(LOCKS - 300, LOCKS):
        backend.remove(f"video:{number}")
    cli.persist("task_lock:video:7")
    assert next(one for one in backend.records(limit=5000) if one.name == "video:7").ttl is None


def test_a_time_left_changed_by_hand_shows_in_short_lists(backend, cli):
    """A long list has the end of the lease as it was; once that is over, the lock is met by what heals it."""
    cli.persist("task_lock:video:7")
    assert next(one for one in backend.records(limit=5000) if one.name == "video:7").ttl is not None
    assert next(one for one in careful(backend) if one.name == "video:7").ttl is None
    assert next(one for one in backend.records(limit=5000) if one.name == "video:7").ttl is None
