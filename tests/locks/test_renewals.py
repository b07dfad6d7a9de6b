"""Renewals in batches: what becomes of one lease says nothing of the others."""

from __future__ import annotations

from itertools import pairwise

import pytest
import redis

from django_tasklock.backends import get_backend
from django_tasklock.backends.contract.stores import LeaseStore
from django_tasklock.locks.heartbeat import Heartbeat
from django_tasklock.locks.lease import Lease
from django_tasklock.types import Grant, Renewal, RenewalResult
from tests.support.proxy import Proxy, scripts
from tests.support.stores import an_ask, granted

pytest_plugins = ["tests.support.redis_fixtures"]
pytestmark = pytest.mark.redis

LEASE = 60_000


class Clock:
    """A clock that goes when it is told to."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1000.0
        for module in ("heartbeat", "lease", "reconcile"):
            monkeypatch.setattr(f"django_tasklock.locks.{module}.monotonic", lambda: self.now)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


class Still(Heartbeat):
    """One without a thread: it is the test that says what time it is."""

    def wake_thread(self) -> None:
        pass

    def beat_after(self, now: float) -> float:
        """Do what is due, and return when to beat again, which is later: otherwise the test would never end."""
        later = self.beat()
        assert later > now
        return later


def take(backend: LeaseStore, beat: Heartbeat, name: str, number: int, now: float) -> list[Lease]:
    """Hold so many locks, as lock objects do."""
    held = []
    for index in range(number):
        hold = Lease(backend, f"{name}:{index}", LEASE, None)
        hold.granted(granted(backend.acquire(an_ask(hold.name, hold.token, ttl=LEASE))), now, 3_600_000)
        beat.follow(hold)
        held.append(hold)
    return held


@pytest.mark.parametrize("kind", ["locks", "permits"])
def test_a_lease_whose_key_is_something_else_now_is_lost_alone(store: redis.Redis, name: str, kind: str) -> None:
    backend, key = (get_backend(), "task_lock:") if kind == "locks" else (get_backend().permits, "task_lock#permits:")
    asks = [an_ask(f"{name}:{index}") for index in range(3)]
    for ask in asks:
        granted(backend.acquire(ask))
    store.delete(f"{key}{name}:1")
    store.hset(f"{key}{name}:1", "what", "else")
    batch = [Renewal(ask.name, ask.token, 60_000) for ask in asks]
    assert backend.renew(batch) == [RenewalResult.RENEWED, RenewalResult.LOST, RenewalResult.RENEWED]


def test_a_lease_whose_requests_always_fail_is_lost_alone(
    proxy: Proxy, name: str, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the reason, and in whosever batch it is."""
    monkeypatch.setattr("django_tasklock.locks.heartbeat.CHUNK", 50)
    beat = Still()
    held = take(get_backend(), beat, name, 110, clock.now)
    renews, bad = scripts("renew"), f"task_lock:{name}:3".encode()
    proxy.fault(lambda request: renews(request) and bad in request, times=-1, answer=b"-ERR failed on purpose\r\n")
    ends = clock.now + 120
    while clock.now < ends:
        clock.now = beat.beat_after(clock.now)
    assert {hold.name: hold.lost for hold in held if hold.lost} == {f"{name}:3": "it could not be renewed in time"}


def test_a_lease_of_which_the_store_says_nothing_is_asked_for_again_until_its_deadline(
    name: str, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Unknown is neither renewed nor lost: the deadline stays, and decides."""
    backend, beat = get_backend(), Still()
    unknown, known = take(backend, beat, name, 2, clock.now)
    renew, ends = backend.renew, clock.now + LEASE / 1000
    asked: list[str] = []

    def silent_of_one(batch: list[Renewal]) -> list[RenewalResult]:
        asked.extend(item.name for item in batch)
        answers = renew(batch)
        return [
            RenewalResult.UNKNOWN if item.name == unknown.name else answer
            for item, answer in zip(batch, answers, strict=True)
        ]

    monkeypatch.setattr(backend, "renew", silent_of_one)
    while not unknown.lost and len(asked) < 1000:
        clock.now = beat.beat_after(clock.now)
    assert ends - 1 < clock.now < ends
    assert asked.count(unknown.name) > 10
    assert unknown.lost == "it could not be renewed in time"
    assert not known.lost


def test_each_is_renewed_at_a_third_of_its_lease(name: str, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    """Or up to a tenth earlier, to share a request with others. It counts from the request, however late the answer."""
    backend, beat = get_backend(), Still()
    (early,) = take(backend, beat, f"{name}:early", 1, clock.now - 3)
    (late,) = take(backend, beat, f"{name}:late", 1, clock.now)
    renew, times = backend.renew, [clock.now - 3]

    def noted(batch: list[Renewal]) -> list[RenewalResult]:
        times.append(clock.now)
        assert {item.name for item in batch} == {early.name, late.name}
        clock.now += 1.0
        return list(renew(batch))

    monkeypatch.setattr(backend, "renew", noted)
    for _ in range(5):
        clock.now = beat.beat_after(clock.now)
    assert late.deadline < times[-1] + LEASE / 1000
    assert [after - before for before, after in pairwise(times)] == [LEASE / 3000] * 4


def test_an_extension_made_while_the_last_renewal_is_on_its_way_counts(
    name: str, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The renewal was sent for what was left of the old timeout, and is answered after the extension."""
    backend, beat = get_backend(), Still()
    (lease,) = take(backend, beat, name, 1, clock.now)
    lease.until = clock.now + 70
    renew, shortest = backend.renew, [LEASE]

    def extended_meanwhile(batch: list[Renewal]) -> list[RenewalResult]:
        if batch[0].ttl < shortest[0]:
            shortest[0] = batch[0].ttl
            lease.granted(Grant(1, LEASE), clock.now, 3_600_000)
        return list(renew(batch))

    monkeypatch.setattr(backend, "renew", extended_meanwhile)
    ends = clock.now + 300
    while clock.now < ends:
        clock.now = beat.beat_after(clock.now)
    assert shortest[0] < LEASE
    assert not lease.lost
