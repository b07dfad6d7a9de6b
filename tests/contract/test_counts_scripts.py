"""How the scripts keep what they count: hours that end, and what earlier versions have counted."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest
import redis

from django_tasklock.backends.contract.metrics import OTHERS, Count
from django_tasklock.backends.redis import RedisBackend
from django_tasklock.backends.redis.metrics import AT_ONCE, UNIT
from django_tasklock.rates.limiter import RateLimiter
from django_tasklock.types import Busy, Released, monotonic
from tests.contract.test_counts import KIND, ask, numbers
from tests.support import environment
from tests.support.stores import Held, clear, granted, make

pytestmark = pytest.mark.redis
HOUR = 3_600_000
RUNNING = "task_lock#counts:now"


@pytest.fixture
def backend() -> Iterator[RedisBackend]:
    clear("redis")
    backend: Any = make("redis")
    yield backend
    backend.close_idle()
    backend.close()


@pytest.fixture
def client(backend: RedisBackend) -> Iterator[redis.Redis]:
    with redis.Redis.from_url(os.environ[environment.REDIS]) as client:
        yield client


def pair(backend: RedisBackend, name: str = "video:1") -> None:
    mine = ask(name)
    granted(backend.acquire(mine))
    backend.release(name, mine.token)


def this_hour(client: redis.Redis) -> int:
    seconds, _ = client.time()
    return int(seconds) // 3600


def set_back(client: redis.Redis, hours: int) -> None:
    """Make the running counts those of an earlier hour, with what was released in this one."""
    now = this_hour(client)
    if client.exists(f"task_lock#counts:{now}"):
        client.rename(f"task_lock#counts:{now}", RUNNING)
        client.srem("task_lock#hours", now)
        client.sadd("task_lock#hours", "now")
    client.pexpireat(RUNNING, 2 * (this_hour(client) - hours) * HOUR)


def by_hour(backend: RedisBackend) -> dict[int, int]:
    """Acquisitions of each hour."""
    key = ("acquired", KIND)
    return {one.at // 3600: one.counted[key].number for one in backend.metrics.hours(24) if key in one.counted}


@pytest.mark.parametrize("first", ["pair", "conflict", "read", "add"])
def test_an_hour_that_is_over(backend: RedisBackend, client: redis.Redis, first: str) -> None:
    """Whoever counts next lets the totals have it; also after a flush of nothing but the totals it is there."""
    pair(backend)
    set_back(client, 2)
    assert by_hour(backend) == {this_hour(client) - 2: 1}
    if first == "conflict":
        held = ask("video:2", None)
        granted(backend.acquire(held))
        backend.acquire(ask("video:2"))
    elif first == "add":
        backend.metrics.add("lost", KIND)
    pair(backend)
    pair(backend)
    assert by_hour(backend) == {this_hour(client) - 2: 1, this_hour(client): 2}
    assert numbers(backend)["acquired"] == numbers(backend)["released"] == 3
    assert client.hlen("task_lock#totals")


def test_totals_know_so_many_kinds_only(backend: RedisBackend, client: redis.Redis) -> None:
    """What is new is the others', then, and nothing is lost: a name for each user would fill the memory."""
    now, most = this_hour(client), 4000
    for hour in (now - 2, now - 1):
        client.sadd("task_lock#hours", hour)
        kinds = {f"acquired|{hour}:{number}": 1 for number in range(most)}
        client.hset(f"task_lock#counts:{hour}", mapping={"released:2|old": 4_000_000_000_200, "about": "", **kinds})
    pair(backend)
    assert client.hlen("task_lock#totals") == 1 + most + 2
    found = backend.metrics.totals()
    assert found["acquired", OTHERS].number == most
    assert found["released:2", "old"] == Count(8, 400)
    assert sum(one.number for (event, _), one in found.items() if event == "acquired") == 2 * most + 1


def test_a_lock_held_for_hours(backend: RedisBackend, client: redis.Redis) -> None:
    """Its acquisition is counted in the hour when it was, whoever counts it; its release in that of the release."""
    mine = ask("video:1", hold=5 * HOUR, ttl=5 * HOUR)
    granted(backend.acquire(mine))
    value = client.get("task_lock:video:1")
    at = int(value.partition(b'"at":')[2].partition(b",")[0])
    earlier = value.replace(b'"at":%d' % at, b'"at":%d' % (at - 3 * HOUR))
    for key in ("task_lock:video:1", "task_lock#open:video:1"):
        client.set(key, earlier, keepttl=True)
    backend.release("video:1", mine.token)
    assert by_hour(backend) == {at // HOUR - 3: 1}
    assert numbers(backend) == {"acquired": 1, "released": 1}
    assert backend.metrics.totals()["released:11", KIND].amount >= 3 * HOUR


def test_more_locks_than_one_script_looks_at(backend: RedisBackend, client: redis.Redis) -> None:
    names = [f"video:{number}" for number in range(AT_ONCE + 100)]
    token = ask("video:0")
    for start in range(0, len(names), 100):
        granted(backend.acquire_all(names[start : start + 100], token))
    assert numbers(backend) == {"acquired": len(names)}
    assert not client.keys("task_lock#open:*")
    for start in range(0, len(names), 100):
        backend.release_all(names[start : start + 100], token.token)
    assert numbers(backend) == {"acquired": len(names), "released": len(names)}
    assert not client.keys("task_lock#held:*")


def test_what_earlier_versions_have_counted(backend: RedisBackend, client: redis.Redis) -> None:
    """Hours of theirs that are over and the one that runs, what is in the totals, and a lock that one of them holds."""
    now = this_hour(client)
    for hour, number in ((now - 1, 5), (now, 7)):
        client.sadd("task_lock#hours", hour)
        client.hset(f"task_lock#counts:{hour}", mapping={f"acquired|{KIND}": number, "about": "counts"})
    client.hset(f"task_lock#counts:{now}", f"released:2|{KIND}", 4_000_000_000_200)
    client.hset("task_lock#totals", f"acquired|{KIND}", 11)
    mine = ask("video:1")
    granted(backend.acquire(mine))
    client.rename("task_lock#open:video:1", "task_lock#held:video:1")  # as they keep it, having counted it
    client.hincrby(f"task_lock#counts:{now}", f"acquired|{KIND}", 1)
    assert numbers(backend) == {"acquired": 24, "released": 4}
    backend.release("video:1", mine.token)
    pair(backend)
    assert numbers(backend) == {"acquired": 25, "released": 6}
    assert by_hour(backend) == {now - 1: 5, now: 9}
    assert client.smembers("task_lock#hours") == {b"now", str(now).encode()}
    assert not client.exists("task_lock#held:video:1")


def test_a_copy_that_was_evicted(backend: RedisBackend, client: redis.Redis) -> None:
    """The lock is there, so that its end counts its acquisition, too."""
    mine = ask("video:1")
    granted(backend.acquire(mine))
    client.delete("task_lock#open:video:1")
    backend.release("video:1", mine.token)
    assert numbers(backend) == {"acquired": 1, "released": 1}


def test_counts_that_are_something_elses(backend: RedisBackend, client: redis.Redis) -> None:
    client.set(RUNNING, "mine")
    pair(backend)
    backend.acquire(ask("video:1"))
    backend.acquire(ask("video:1"))
    assert client.get(RUNNING) == b"mine"


def hold(backend: RedisBackend, name: str = "video:1", ms: int = 2, ago: int = 0) -> Held:
    """Take a lock, and have it for ``ms``; ``ago``: hours by which the clock was behind that its fence is from."""
    mine = ask(name)
    grant = backend.acquire(mine)
    granted(grant)
    return Held(name, mine.token, KIND, grant.fence - ago * HOUR * 1000, monotonic() - ms / 1000)


def field(bucket: int = 0) -> str:
    return f"done:{bucket}|{KIND}"


def test_several_of_which_one_is_busy_are_given_back_by_the_script(backend: RedisBackend) -> None:
    """The terms of the request are not taken for a count that is ready."""
    mine, other = ask("video:1"), ask("video:2")
    granted(backend.acquire(mine))
    granted(backend.acquire(other))
    assert isinstance(backend.acquire_all(["video:1", "video:2"], mine), Busy)
    assert backend.get("video:1") is None
    assert numbers(backend) == {"acquired": 2, "released": 1, "conflict:skip": 1}


class TestReady:
    """The holder says what is to be counted; the script believes it where nothing is new."""

    def test_it_is_one_command_in_the_hour_of_the_fence(self, backend: RedisBackend, client: redis.Redis) -> None:
        for _ in range(3):
            assert backend.release_held(hold(backend)) is Released.RELEASED
        hours = [key for key in client.keys("task_lock#counts:*") if key != RUNNING.encode()]
        [hour] = {int(key.rpartition(b":")[2]) for key in hours}
        assert this_hour(client) - hour in (0, 1)  # it may end meanwhile
        assert str(hour).encode() in client.smembers("task_lock#hours")
        assert not client.exists(RUNNING, "task_lock#open:video:1", "task_lock#held:video:1")
        assert numbers(backend) == {"acquired": 3, "released": 3}
        assert by_hour(backend) == {hour: 3}

    def test_a_release_that_clears_flags_counts_as_well(self, backend: RedisBackend, client: redis.Redis) -> None:
        backend.set_flag("again:1")
        for notes, found in ((("video:1",), set()), (("video:1", "again:1"), {"again:1"}), (("again:1",), set())):
            # The first of its kind and duration in an hour looks at the clock. 600 ms: a stall makes no other duration.
            backend.release_held(hold(backend, ms=600))
            mine = hold(backend, ms=600)
            client.config_resetstat()
            assert backend.release_and_clear(mine, notes) == (Released.RELEASED, found)
            assert "cmdstat_time" not in client.info("commandstats")
        assert numbers(backend) == {"acquired": 6, "released": 6}
        assert not client.exists(RUNNING, "task_lock#open:video:1", "task_lock#held:video:1")

    def test_of_another_hour_it_is_counted_in_the_one_that_runs(
        self, backend: RedisBackend, client: redis.Redis
    ) -> None:
        """A clock that was set, or a holder that was stopped: no hour comes back that is in the totals."""
        now = this_hour(client)
        for ago in (3, -3):
            backend.release_held(hold(backend, ago=ago))
        assert not client.exists(f"task_lock#counts:{now - 3}", f"task_lock#counts:{now + 3}")
        assert numbers(backend) == {"acquired": 2, "released": 2}
        assert set(by_hour(backend)) <= {now, now + 1}

    def test_an_hour_that_is_over_goes_to_the_totals(self, backend: RedisBackend, client: redis.Redis) -> None:
        before = this_hour(client) - 1
        client.sadd("task_lock#hours", before)
        client.hset(f"task_lock#counts:{before}", field(), 5 * UNIT + 10)
        backend.release_held(hold(backend))
        assert numbers(backend) == {"acquired": 6, "released": 6}
        assert by_hour(backend)[before] == 5
        assert not client.exists(f"task_lock#counts:{before}")

    def test_a_counted_acquisition_is_not_counted_again_by_the_release(self, backend: RedisBackend) -> None:
        mine = hold(backend)
        assert numbers(backend) == {"acquired": 1}
        backend.release_held(mine)
        assert numbers(backend) == {"acquired": 1, "released": 1}

    def test_a_release_counts_the_acquisition_although_its_copy_was_evicted(
        self, backend: RedisBackend, client: redis.Redis
    ) -> None:
        mine = hold(backend)
        client.delete("task_lock#open:video:1")
        backend.release_held(mine)
        assert numbers(backend) == {"acquired": 1, "released": 1}

    def test_a_long_one_is_among_the_last_holds(self, backend: RedisBackend, client: redis.Redis) -> None:
        mine = hold(backend, ms=1000)
        value = client.get("task_lock:video:1")
        at = value.partition(b'"at":')[2].partition(b",")[0]
        client.set("task_lock:video:1", value.replace(at, b"%d" % (int(at) - 1000), 1), keepttl=True)
        backend.release_held(mine)
        assert [one.how for one in backend.metrics.holds("video:1", 10)] == ["released"]

    def test_one_that_is_lost_counts_nothing(self, backend: RedisBackend) -> None:
        mine = hold(backend)
        other = Held("video:1", "another", KIND, mine.fence, mine.granted_at)
        assert backend.release_held(other) is Released.NOT_YOURS
        assert backend.remove("video:1") is not None
        assert backend.release_held(mine) is Released.GONE
        assert numbers(backend) == {"acquired": 1, "forced": 1}

    def test_a_release_that_hands_over_counts_both_holds(self, backend: RedisBackend) -> None:
        mine, other = hold(backend), ask("video:1")
        with backend.waiter(other) as waiter:
            waiter.acquire()
            backend.release_held(mine)
            granted(waiter.acquire())
        backend.release_held(Held("video:1", other.token, KIND, mine.fence, monotonic()))
        assert numbers(backend) == {"acquired": 1, "waited": 1, "released": 2}

    def test_a_number_that_grows_too_large_is_taken_apart(self, backend: RedisBackend, client: redis.Redis) -> None:
        backend.release_held(hold(backend))
        [hour] = set(by_hour(backend))
        client.hset(f"task_lock#counts:{hour}", field(), 100_000 * UNIT + 7)
        backend.release_held(hold(backend))
        assert client.hget(f"task_lock#counts:{hour}", f"n|{field()}") == b"100001"
        assert numbers(backend)["released"] == 100_001

    def test_counts_that_are_something_elses(self, backend: RedisBackend, client: redis.Redis) -> None:
        keys = [f"task_lock#counts:{this_hour(client) + more}" for more in (0, 1)]
        client.mset(dict.fromkeys(keys, "mine"))
        assert backend.release_held(hold(backend)) is Released.RELEASED
        assert client.mget(keys) == [b"mine"] * 2


def test_calls_that_a_limiter_lets_go_at_once_are_in_the_totals(backend: RedisBackend, settings: Any) -> None:
    settings.TASKLOCK = {**settings.TASKLOCK, "LOCATION": os.environ[environment.REDIS]}
    limiter = RateLimiter("mail", "100/m")
    for _ in range(3):
        assert limiter.try_acquire() is not None
    assert numbers(backend, "mail")["limit.granted"] == 3
