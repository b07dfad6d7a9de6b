"""A body does not begin whose lock is known to be lost, or asked for, however long it has waited inside."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from django.db import connections, transaction

from django_tasklock import (
    ConcurrencyLimiter,
    LockLost,
    RateLimiter,
    ReleaseAsked,
    TaskLock,
    concurrency_limited,
    model_lock,
    rate_limited,
    signals,
    task_lock,
)
from django_tasklock.guards.claim import Claim
from django_tasklock.locks.heartbeat import heartbeat
from django_tasklock.locks.lease import Lease
from tests.support.guards import GUARD
from tests.support.public import in_store
from tests.support.stores import eventually, stores
from tests.support.twins import TWINS
from tests.testapp.models import Video

pytest_plugins = ["tests.support.redis_fixtures"]


@pytest.fixture(params=stores("memory"))
def store(request: Any, settings: Any) -> Iterator[str]:
    """The name of the store in force, empty."""
    yield from in_store(request.param, settings)


def known(name: str) -> Lease:
    """What this process has of a lock."""
    [hold] = [hold for hold in heartbeat.leases() if hold.name == name]
    return hold


def loses(name: str) -> None:
    """As the heartbeat says that it is lost."""
    heartbeat.announce([(known(name), "for this test")])


def asks(name: str) -> None:
    """As a renewal says that somebody asks for it."""
    assert known(name).mark_asked()


HAPPENS = pytest.mark.parametrize(("happens", "error"), [(loses, LockLost), (asks, ReleaseAsked)])


class Running:
    """A call in a thread, or in an event loop there."""

    def __init__(self, work: Callable[[], object]) -> None:
        self.error: BaseException | None = None
        self.work = work
        self.thread = threading.Thread(target=self._run)
        self.thread.start()

    def _run(self) -> None:
        try:
            self.work()
        except BaseException as error:
            self.error = error
        finally:
            connections.close_all()

    def ends_with(self, error: type[BaseException]) -> None:
        """And nothing that it waits for has come."""
        self.thread.join(30)
        assert isinstance(self.error, error), self.error


begun: list[str] = []


def begins(way: str, *decorators: Callable[[Any], Any]) -> Callable[[], object]:
    """A call that may not begin its body, decorated so, the innermost first."""

    def body() -> None:
        begun.append("sync")

    async def coroutine() -> None:
        begun.append("async")

    call: Any = body if way == "sync" else coroutine
    for decorate in decorators:
        call = decorate(call)
    return call if way == "sync" else lambda: asyncio.run(call())


@pytest.fixture(autouse=True)
def nothing_begun() -> Iterator[None]:
    begun.clear()
    yield
    assert not begun


@HAPPENS
def test_while_it_waits_for_a_permit(store: str, happens: Any, error: type[BaseException]) -> None:
    other = ConcurrencyLimiter("transcode", 1)
    assert other.acquire()
    waits = concurrency_limited("transcode", 1, on_conflict="wait")
    call = Running(begins("sync", waits, task_lock("report")))
    eventually(lambda: other.info().waiting == 1)
    happens("report")
    call.ends_with(error)
    assert other.release()
    assert not TaskLock("report").locked()


@HAPPENS
@TWINS
def test_while_it_waits_for_a_rate(store: str, way: str, happens: Any, error: type[BaseException]) -> None:
    limiter = RateLimiter("mail", "1/m")
    limiter.acquire()
    call = Running(begins(way, rate_limited("mail", "1/m"), task_lock("report")))
    eventually(lambda: any(hold.name == "report" and hold.listeners for hold in heartbeat.leases()))
    happens("report")
    call.ends_with(error)
    assert not TaskLock("report").locked()


@TWINS
def test_right_before_it_begins(store: str, way: str) -> None:
    def lost_at_once(sender: str, **details: Any) -> None:
        loses(sender)

    signals.lock_acquired.connect(lost_at_once)
    try:
        with pytest.raises(LockLost, match="for this test"):
            begins(way, task_lock("report"))()
    finally:
        signals.lock_acquired.disconnect(lost_at_once)
    assert not TaskLock("report").locked()


@pytest.mark.django_db(transaction=True)
def test_its_row_stays_claimable(store: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It was not worked on."""

    @model_lock(Video, "video:{pk}", pk="pk", guard=GUARD)
    def work(pk: int) -> None:
        begun.append("guarded")

    video = Video.objects.create()
    claim = Claim.claim

    def then_lose(self: Claim) -> None:
        claim(self)
        loses(f"video:{video.pk}")

    monkeypatch.setattr(Claim, "claim", then_lose)
    with pytest.raises(LockLost):
        work(video.pk)
    video.refresh_from_db()
    assert (video.status, video.lock_token) == (GUARD.retry, "")


# In a transaction that is not over


@pytest.fixture
def said(warnings_logged: Callable[[], list[str]]) -> Callable[[], list[str]]:
    """What was said of locks that are released before their work is committed."""
    return lambda: [line for line in warnings_logged() if "inside of atomic()" in line]


def a_block(name: str) -> None:
    with TaskLock(name):
        pass


@pytest.mark.django_db(transaction=True)
def test_a_lock_that_is_free_before_the_commit_is_mentioned_once(store: str, said: Any) -> None:
    """Whoever takes it next reads what was there before, and overwrites what is written here."""
    video = Video.objects.create()
    with transaction.atomic():
        with TaskLock("outer"):
            pass
        a_block("video:1")
        Video.objects.filter(pk=video.pk).update(progress=1)
    assert len(said()) == 1
    assert "'outer'" in said()[0]
    assert "enter atomic() inside of it" in said()[0]


@pytest.mark.django_db(transaction=True)
def test_one_that_is_released_after_it_is_not(store: str, said: Any) -> None:
    with TaskLock("video:1"), transaction.atomic():
        pass
    assert not said()


@pytest.mark.django_db
def test_nor_is_one_in_the_transaction_of_a_test(settings: Any, said: Any) -> None:
    for _ in in_store("memory", settings):
        a_block("video:1")
        assert not said()
        with transaction.atomic():
            a_block("video:1")
        assert len(said()) == 1
