"""Several locks at once, on every store: all of them, or none."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Callable
from functools import partial

import pytest

from django_tasklock.backends.contract.locks import LockStore
from django_tasklock.backends.contract.queries import Query
from django_tasklock.names import Names
from django_tasklock.types import AcquireRequest, Busy, Holder, Released, Renewal, RenewalResult
from tests.support.stores import (
    ALL,
    BEYOND,
    LAPSING,
    LISTING,
    WAKING,
    an_ask,
    clear,
    eventually,
    granted,
    make,
    new_token,
    stores,
)
from tests.support.twins import TWINS, call, thread_of

SHORT = 120  # ms: a lease that is to lapse
THREE = ("a", "b", "c")


@pytest.fixture(params=stores(*ALL, *BEYOND))
def backend(request) -> LockStore:
    """A backend with an empty store."""
    clear(request.param)
    backend = make(request.param)
    yield backend
    backend.close_idle()
    backend.close()


lapsing = pytest.mark.parametrize("backend", stores(*LAPSING, *BEYOND), indirect=True)
listing = pytest.mark.parametrize("backend", stores(*LISTING, *BEYOND), indirect=True)
waking = pytest.mark.parametrize("backend", stores(*WAKING, *BEYOND), indirect=True)


def ask(names: tuple[str, ...] = THREE, **terms: object) -> AcquireRequest:
    """A request for several, by a new holder."""
    return an_ask(Names(names), **terms)


def held(backend: LockStore, names: tuple[str, ...] = THREE) -> list[str | None]:
    """Whose they are, by token."""
    return [None if record is None else record.token for record in backend.get_all(names)]


class TestAcquiring:
    @TWINS
    def test_all_are_granted_or_none(self, backend, way):
        mine = ask(ttl=5000, hold=9000)
        grant = granted(call(way, backend, "acquire_all", THREE, mine))
        assert grant.ttl == 5000
        assert held(backend) == [mine.token] * 3
        assert [(backend.get(name) or mine).name for name in THREE] == list(THREE)
        assert max(record.fence for record in backend.get_all(THREE)) == grant.fence
        assert call(way, backend, "release_all", THREE, mine.token) is Released.RELEASED
        assert held(backend) == [None] * 3

    @TWINS
    @pytest.mark.parametrize("taken", THREE)
    def test_the_one_that_is_busy_is_named_and_the_others_are_free(self, backend, way, taken):
        holder = {"host": "web1", "pid": 7, "boot": "b", "task": "app.tasks.t", "task_id": "id-1"}
        other = an_ask(taken, ttl=5000, holder=json.dumps(holder))
        granted(backend.acquire(other))
        busy = call(way, backend, "acquire_all", THREE, ask())
        assert isinstance(busy, Busy)
        assert busy.name == taken
        assert busy.record is not None
        assert (busy.record.name, busy.record.token, busy.record.holder) == (taken, other.token, Holder(**holder))
        assert 0 < busy.remaining <= 5000
        assert held(backend) == [other.token if name == taken else None for name in THREE]

    def test_each_is_a_lock_of_its_own_to_whoever_asks_for_it(self, backend):
        mine = ask()
        granted(backend.acquire_all(THREE, mine))
        for name in THREE:
            assert isinstance(backend.acquire(an_ask(name)), Busy)
        assert isinstance(backend.acquire_all(("c", "d"), ask(("c", "d"))), Busy)
        assert backend.get("d") is None

    def test_asking_again_with_the_same_token_is_granted_again_with_the_same_fence(self, backend):
        mine = ask()
        first = granted(backend.acquire_all(THREE, mine))
        assert granted(backend.acquire_all(THREE, mine)) == first
        assert backend.release_all(THREE, mine.token) is Released.RELEASED
        assert held(backend) == [None] * 3

    def test_the_fence_is_greater_than_that_of_each_before(self, backend):
        before = []
        for name in THREE:
            one = an_ask(name)
            before.append(granted(backend.acquire(one)).fence)
            backend.release(name, one.token)
        mine = ask()
        fence = granted(backend.acquire_all(THREE, mine)).fence
        assert fence > max(before)
        backend.release_all(THREE, mine.token)

    @listing
    def test_who_comes_next_for_one_of_them_has_a_greater_fence(self, backend):
        mine = ask()
        fence = granted(backend.acquire_all(THREE, mine)).fence
        backend.release_all(THREE, mine.token)
        assert all(granted(backend.acquire(an_ask(name))).fence > fence for name in THREE)

    @lapsing
    def test_lapsed_ones_are_granted(self, backend):
        granted(backend.acquire_all(THREE, ask(ttl=SHORT)))
        mine = ask()
        eventually(lambda: not isinstance(backend.acquire_all(THREE, mine), Busy))
        assert held(backend) == [mine.token] * 3

    @lapsing
    def test_who_follows_a_holder_is_granted_all_over_it(self, backend):
        first = ask()
        granted(backend.acquire_all(THREE, first))
        mine = ask()._replace(supersedes=first.token)
        granted(backend.acquire_all(THREE, mine))
        assert held(backend) == [mine.token] * 3

    def test_of_many_at_once_one_gets_them(self, backend):
        asks = [ask() for _ in range(6)]
        answers: list[object] = []
        start = threading.Barrier(len(asks))

        def take(one: AcquireRequest) -> None:
            start.wait()
            answers.append(backend.acquire_all(THREE, one))
            backend.close_idle()

        threads = [thread_of(partial(take, one)) for one in asks]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
        won = [answer for answer in answers if not isinstance(answer, Busy)]
        assert len(answers) == len(asks)
        assert len(won) <= 1  # of those that are taken one after the other there may be none
        tokens = set(held(backend))
        assert len(tokens) == 1
        assert (tokens == {None}) is not bool(won)


class TestHolding:
    @TWINS
    def test_extended_together(self, backend, way):
        mine = ask(ttl=5000, hold=6000)
        granted(backend.acquire_all(THREE, mine))
        assert call(way, backend, "extend_all", THREE, mine.token, 50_000, 90_000) is True
        for record in backend.get_all(THREE):
            assert record.ttl > 40_000
            assert record.until - record.now > 80_000
        backend.remove("b")
        assert call(way, backend, "extend_all", THREE, mine.token, 50_000, 90_000) is False

    def test_renewed_together_and_lost_if_one_is(self, backend):
        lease, other = backend.several, an_ask("z")
        mine = ask(ttl=5000)
        granted(lease.acquire(mine))
        granted(backend.acquire(other))
        batch = [Renewal(mine.name, mine.token, 50_000), Renewal("z", other.token, 50_000)]
        assert lease.renew(batch) == [RenewalResult.RENEWED] * 2
        backend.ask_release("c", mine.token)
        assert lease.renew(batch) == [RenewalResult.ASKED, RenewalResult.RENEWED]
        backend.remove("b")
        assert lease.renew(batch) == [RenewalResult.LOST, RenewalResult.RENEWED]

    @TWINS
    def test_a_look_finds_the_one_that_is_lost_or_asked_for(self, backend, way):
        lease, mine = backend.several, ask()
        granted(lease.acquire(mine))
        assert call(way, lease, "get_held", mine.name, mine.token).token == mine.token
        backend.ask_release("c", mine.token)
        assert call(way, lease, "get_held", mine.name, mine.token).asked
        backend.remove("b")
        assert call(way, lease, "get_held", mine.name, mine.token) is None
        other = an_ask("b")
        granted(backend.acquire(other))
        assert call(way, lease, "get_held", mine.name, mine.token).token == other.token

    @TWINS
    def test_a_release_gives_the_others_back_where_one_was_lost(self, backend, way):
        mine, other = ask(), an_ask("b")
        granted(backend.acquire_all(THREE, mine))
        backend.remove("b")
        granted(backend.acquire(other))
        assert call(way, backend, "release_all", THREE, mine.token) is Released.NOT_YOURS
        assert held(backend) == [None, other.token, None]
        assert call(way, backend, "release_all", THREE, mine.token) is Released.GONE

    @listing
    def test_each_is_listed(self, backend):
        granted(backend.acquire_all(THREE, ask()))
        assert sorted(record.name for record in backend.page(Query()).records) == list(THREE)
        backend.release_all(THREE, backend.get("a").token)
        assert backend.page(Query()).records == []


class TestWaiting:
    @staticmethod
    def waited(backend: LockStore, one: AcquireRequest) -> Callable[[], object]:
        """Wait for several in another thread; what it is granted, once it is."""
        found: list[object] = []

        def wait() -> None:
            with backend.several.waiter(one) as waiter:
                ends = time.monotonic() + 20
                while time.monotonic() < ends:
                    answer = waiter.acquire()
                    if not isinstance(answer, Busy):
                        found.append(answer)
                        break
                    waiter.wait(1)
            backend.close_idle()

        thread = thread_of(wait)
        thread.start()

        def result() -> object:
            thread.join(25)
            return found[0]

        return result

    def test_until_the_last_of_them_is_free(self, backend):
        first, last = an_ask("a"), an_ask("c")
        granted(backend.acquire(first))
        granted(backend.acquire(last))
        mine = ask()
        result = self.waited(backend, mine)
        backend.release("a", first.token)
        eventually(lambda: backend.get("b") is None)
        assert held(backend) != [mine.token] * 3
        backend.release("c", last.token)
        granted(result())
        assert held(backend) == [mine.token] * 3

    @waking
    def test_a_waiter_for_several_names_holds_none_of_them(self, backend):
        """What is handed over while another is busy goes on to the next in line."""
        first, last = an_ask("a"), an_ask("c")
        granted(backend.acquire(first))
        granted(backend.acquire(last))
        mine, next_one = ask(), an_ask("a")
        result = self.waited(backend, mine)
        eventually(lambda: backend.get("a").waiting == 1)
        with backend.waiter(next_one) as waiter:
            assert isinstance(waiter.acquire(), Busy)
            backend.release("a", first.token)
            eventually(lambda: waiter.wait(0.5) or not isinstance(waiter.acquire(), Busy))
        eventually(lambda: held(backend) == [next_one.token, None, last.token])  # "b" is taken for a moment, and again
        eventually(lambda: backend.get("c").waiting == 1)
        backend.release("c", last.token)
        backend.release("a", next_one.token)
        granted(result())

    @waking
    def test_a_waiter_that_leaves_has_no_queue_entry_and_no_lock(self, backend):
        first = an_ask("b")
        granted(backend.acquire(first))
        with backend.several.waiter(ask()) as waiter:
            assert isinstance(waiter.acquire(), Busy)
            assert backend.get("b").waiting == 1
            assert waiter.acquire().name == "b"
        assert backend.get("b").waiting == 0
        with backend.several.waiter(ask()) as waiter:
            waiter.acquire()
            backend.release("b", first.token)  # handed over to whoever leaves
        assert held(backend) == [None] * 3

    @waking
    def test_a_coroutine(self, backend):
        first, mine = an_ask("b"), ask()
        granted(backend.acquire(first))

        async def main() -> None:
            waiter = backend.several.waiter(mine)
            try:
                assert (await waiter.aacquire()).name == "b"
                await backend.arelease("b", first.token)
                for _ in range(50):
                    assert await waiter.await_(0.2) is None
                    if not isinstance(await waiter.aacquire(), Busy):
                        break
            finally:
                await waiter.aleave()

        asyncio.run(asyncio.wait_for(main(), 30))
        assert held(backend) == [mine.token] * 3


def test_a_token_that_has_some_of_them_loses_them_with_the_others(backend):
    """As one that was handed over by a queue, and the next one is busy."""
    mine, other = new_token(), an_ask("c")
    granted(backend.acquire(an_ask("b", mine)))
    granted(backend.acquire(other))
    assert backend.acquire_all(THREE, an_ask(Names(THREE), mine)).name == "c"
    assert held(backend) == [None, None, other.token]


@pytest.mark.parametrize(
    ("told", "whole"),
    [
        (("RENEWED", "RENEWED", "RENEWED"), "RENEWED"),
        (("RENEWED", "ASKED", "RENEWED"), "ASKED"),
        (("RENEWED", "UNKNOWN", "ASKED"), "UNKNOWN"),
        (("UNKNOWN", "LOST", "RENEWED"), "LOST"),
    ],
)
def test_renewed_as_the_worst_of_them(monkeypatch, told, whole):
    """A cluster's node that is silent leaves open what became of the names on it."""
    clear("memory")
    backend = make("memory")
    monkeypatch.setattr(backend, "renew", lambda batch: [RenewalResult[one] for one in told])
    [result] = backend.several.renew([Renewal(Names(THREE), new_token(), 1000)])
    assert result is RenewalResult[whole]
