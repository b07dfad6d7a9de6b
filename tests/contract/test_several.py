"""Several locks at once, above every store: all of them, or none."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Callable
from functools import partial

import pytest

from django_tasklock.backends.contract import lists
from django_tasklock.backends.contract.lists import Query
from django_tasklock.backends.contract.stores import LockStore
from django_tasklock.exceptions import BackendUnavailable
from django_tasklock.names import Names
from django_tasklock.types import AcquireRequest, Busy, Holder, Released, Renewal, RenewalResult
from tests.support.stores import (
    ALL,
    BEYOND,
    LAPSING,
    LISTING,
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
THREE = Names(("a", "b", "c"))


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


def ask(names: Names = THREE, **terms: object) -> AcquireRequest:
    """A request for several, by a new holder."""
    return an_ask(names, **terms)


def held(backend: LockStore) -> list[str | None]:
    """Whose they are, by token."""
    return [None if record is None else record.token for record in map(backend.get, THREE.each)]


class TestAcquiring:
    @TWINS
    def test_all_are_granted_or_none(self, backend, way):
        mine = ask(ttl=5000, hold=9000)
        grant = granted(call(way, backend.several, "acquire", mine))
        assert grant.ttl == 5000
        assert held(backend) == [mine.token] * 3
        assert [(backend.get(name) or mine).name for name in THREE.each] == list(THREE.each)
        assert max(record.fence for record in map(backend.get, THREE.each)) == grant.fence
        assert call(way, backend.several, "release", THREE, mine.token) is Released.RELEASED
        assert held(backend) == [None] * 3

    @TWINS
    @pytest.mark.parametrize("taken", THREE.each)
    def test_the_one_that_is_busy_is_named_and_the_others_are_free(self, backend, way, taken):
        holder = {"host": "web1", "pid": 7, "boot": "b", "task": "app.tasks.t", "task_id": "id-1"}
        other = an_ask(taken, ttl=5000, holder=json.dumps(holder))
        granted(backend.acquire(other))
        busy = call(way, backend.several, "acquire", ask())
        assert isinstance(busy, Busy)
        assert busy.name == taken
        assert busy.record is not None
        assert (busy.record.name, busy.record.token, busy.record.holder) == (taken, other.token, Holder(**holder))
        assert 0 < busy.remaining <= 5000
        assert held(backend) == [other.token if name == taken else None for name in THREE.each]

    def test_each_is_a_lock_of_its_own_to_whoever_asks_for_it(self, backend):
        mine = ask()
        granted(backend.several.acquire(mine))
        for name in THREE.each:
            assert isinstance(backend.acquire(an_ask(name)), Busy)
        assert isinstance(backend.several.acquire(ask(Names(("c", "d")))), Busy)
        assert backend.get("d") is None

    def test_asking_again_with_the_same_token_is_granted_again_with_the_same_fence(self, backend):
        mine = ask()
        first = granted(backend.several.acquire(mine))
        assert granted(backend.several.acquire(mine)) == first
        assert backend.several.release(THREE, mine.token) is Released.RELEASED
        assert held(backend) == [None] * 3

    def test_the_fence_is_greater_than_that_of_each_before(self, backend):
        before = []
        for name in THREE.each:
            one = an_ask(name)
            before.append(granted(backend.acquire(one)).fence)
            backend.release(name, one.token)
        mine = ask()
        fence = granted(backend.several.acquire(mine)).fence
        assert fence > max(before)
        backend.several.release(THREE, mine.token)

    @pytest.mark.parametrize("backend", stores("redis", "memory", "sentinel", "cluster"), indirect=True)
    def test_where_one_counter_serves_all_names_who_comes_next_for_one_of_them_has_a_greater_fence(self, backend):
        mine = ask()
        fence = granted(backend.several.acquire(mine)).fence
        backend.several.release(THREE, mine.token)
        assert all(granted(backend.acquire(an_ask(name))).fence > fence for name in THREE.each)

    @lapsing
    def test_lapsed_ones_are_granted(self, backend):
        granted(backend.several.acquire(ask(ttl=SHORT)))
        mine = ask()
        eventually(lambda: not isinstance(backend.several.acquire(mine), Busy))
        assert held(backend) == [mine.token] * 3

    @lapsing
    def test_who_follows_a_holder_is_granted_all_over_it(self, backend):
        first = ask()
        granted(backend.several.acquire(first))
        mine = ask()._replace(supersedes=first.token)
        granted(backend.several.acquire(mine))
        assert held(backend) == [mine.token] * 3

    def test_of_many_at_once_one_gets_them(self, backend):
        asks = [ask() for _ in range(6)]
        answers: list[object] = []
        start = threading.Barrier(len(asks))

        def take(one: AcquireRequest) -> None:
            start.wait()
            answers.append(backend.several.acquire(one))
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
        granted(backend.several.acquire(mine))
        assert call(way, backend.several, "extend", THREE, mine.token, 50_000, 90_000) is True
        for record in map(backend.get, THREE.each):
            assert record.ttl > 40_000
            assert record.until - record.now > 80_000
        backend.remove("b")
        assert call(way, backend.several, "extend", THREE, mine.token, 50_000, 90_000) is False

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
        granted(backend.several.acquire(mine))
        backend.remove("b")
        granted(backend.acquire(other))
        assert call(way, backend.several, "release", THREE, mine.token) is Released.NOT_YOURS
        assert held(backend) == [None, other.token, None]
        assert call(way, backend.several, "release", THREE, mine.token) is Released.GONE

    @listing
    def test_each_is_listed(self, backend):
        granted(backend.several.acquire(ask()))
        assert sorted(record.name for record in lists.page(backend, Query()).records) == list(THREE.each)
        backend.several.release(THREE, backend.get("a").token)
        assert lists.page(backend, Query()).records == []


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

    def test_a_waiter_holds_none_of_them_and_leaves_nothing_behind(self, backend):
        first = an_ask("b")
        granted(backend.acquire(first))
        with backend.several.waiter(ask()) as waiter:
            for _ in range(2):
                assert waiter.acquire().name == "b"
                assert held(backend) == [None, first.token, None]
                assert waiter.wait(0.01) is None
            backend.release("b", first.token)
        assert held(backend) == [None] * 3

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


@pytest.mark.parametrize("taken", THREE.each)
def test_a_token_that_has_some_of_them_loses_them_with_the_others(backend, taken):
    """As when an answer was lost, and one of the leases has passed to another holder before it is asked again."""
    mine, other = ask(), an_ask(taken)
    granted(backend.several.acquire(mine))
    backend.remove(taken)
    granted(backend.acquire(other))
    assert backend.several.acquire(mine).name == taken
    assert held(backend) == [other.token if name == taken else None for name in THREE.each]


@pytest.mark.parametrize(("down_at", "doubt"), [("a", False), ("b", True), ("c", True)])
def test_a_store_that_fails_on_the_way_leaves_it_in_doubt(monkeypatch, down_at, doubt):
    clear("memory")
    backend = make("memory")
    acquire = backend.acquire

    def take(request: AcquireRequest) -> object:
        if request.name == down_at:
            raise BackendUnavailable("down", doubt=False)
        return acquire(request)

    monkeypatch.setattr(backend, "acquire", take)
    with pytest.raises(BackendUnavailable) as caught:
        backend.several.acquire(ask())
    assert caught.value.doubt is doubt


@pytest.mark.redis
def test_a_coroutine_that_is_cancelled_on_the_way_gives_all_back(monkeypatch):
    """The thread still finishes, and then releases what it was granted."""
    clear("redis")
    backend = make("redis")
    acquire, reached, go_on = backend.acquire, threading.Event(), threading.Event()

    def take(request: AcquireRequest) -> object:
        if request.name == "b":
            reached.set()
            go_on.wait(20)
        return acquire(request)

    monkeypatch.setattr(backend, "acquire", take)

    async def main() -> None:
        taking = asyncio.ensure_future(backend.several.aacquire(ask()))
        assert await asyncio.to_thread(reached.wait, 20)
        taking.cancel()
        asyncio.get_running_loop().call_later(0.1, go_on.set)
        with pytest.raises(asyncio.CancelledError):
            await taking

    asyncio.run(asyncio.wait_for(main(), 30))
    eventually(lambda: held(backend) == [None] * 3)
    backend.close()


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
    [result] = backend.several.renew([Renewal(THREE, new_token(), 1000)])
    assert result is RenewalResult[whole]
