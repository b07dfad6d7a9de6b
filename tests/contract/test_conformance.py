"""The contract of ``backends.base``, and every store through it."""

from __future__ import annotations

import asyncio
import json
import threading
import time

import pytest
from asgiref.sync import async_to_sync

from django_tasklock.backends.contract.locks import LockStore
from django_tasklock.types import Busy, Grant, Holder, Released, Renewal, RenewalResult
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

SHORT = 120  # ms: a lease that is to lapse


@pytest.fixture
def store(request) -> str:
    """The name of the store that ``backend`` stands for."""
    return request.node.callspec.params["backend"]


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


def lapse(backend: LockStore, name: str) -> None:
    """Wait until nobody holds ``name``."""
    eventually(lambda: backend.get(name) is None)


class TestAcquiring:
    def test_a_free_lock_is_granted_for_the_ttl_that_was_asked_for(self, backend):
        grant = granted(backend.acquire(an_ask("video:1", ttl=5000)))
        assert grant.ttl == 5000
        assert grant.fence > 0

    def test_a_held_lock_is_busy_and_says_who_holds_it_and_for_how_long(self, backend):
        holder = {"host": "web1", "pid": 7, "boot": "b", "task": "app.tasks.t", "task_id": "id-1"}
        mine = an_ask("video:1", ttl=5000, hold=9000, holder=json.dumps(holder))
        grant = granted(backend.acquire(mine))
        busy = backend.acquire(an_ask("video:1"))
        assert isinstance(busy, Busy)
        assert busy.record is not None
        assert (busy.record.name, busy.record.token, busy.record.fence) == ("video:1", mine.token, grant.fence)
        assert busy.record.holder == Holder(**holder)
        assert 0 < busy.remaining <= 5000
        assert busy.record.until == busy.record.at + 9000
        assert abs(busy.record.now - busy.record.at) < 5000

    def test_asking_again_with_the_same_token_is_granted_again_with_the_same_fence(self, backend):
        mine = an_ask("video:1")
        first = granted(backend.acquire(mine))
        assert granted(backend.acquire(mine)) == first
        assert isinstance(backend.acquire(an_ask("video:1")), Busy)
        assert granted(backend.acquire(mine)) == first
        assert backend.release("video:1", mine.token) is Released.RELEASED
        assert backend.get("video:1") is None

    @lapsing
    def test_asking_again_keeps_the_time_of_the_first_grant_and_renews_the_lease(self, backend):
        token = new_token()
        asked = time.monotonic()
        backend.acquire(an_ask("video:1", token, ttl=1000))
        first = backend.get("video:1")
        granted(backend.acquire(an_ask("video:1", token, ttl=60_000)))
        eventually(lambda: time.monotonic() > asked + 1.1)  # the first lease would be over
        second = backend.get("video:1")
        assert (second.token, second.at) == (token, first.at)

    @lapsing
    def test_who_follows_a_holder_is_granted_the_lock_over_it(self, backend):
        """Once: it has a token of its own then."""
        first = an_ask("video:1")
        before = granted(backend.acquire(first))
        mine, other = (an_ask("video:1", ttl=5000)._replace(supersedes=first.token) for _ in range(2))
        after = granted(backend.acquire(mine))
        assert after.ttl == 5000
        assert after.fence > before.fence
        assert granted(backend.acquire(mine)).fence == after.fence  # its first answer was lost
        assert isinstance(backend.acquire(other), Busy)
        assert backend.get("video:1").token == mine.token
        assert backend.renew([Renewal("video:1", first.token, 5000)]) == [RenewalResult.LOST]
        assert backend.release("video:1", first.token) is Released.NOT_YOURS
        assert backend.release("video:1", mine.token) is Released.RELEASED

    def test_whom_one_would_follow_may_be_gone(self, backend):
        assert granted(backend.acquire(an_ask("video:1")._replace(supersedes=new_token())))
        assert isinstance(backend.acquire(an_ask("video:1")._replace(supersedes=new_token())), Busy)

    def test_a_lapsed_lock_is_granted_to_the_next_and_not_before(self, backend):
        asked = time.monotonic()
        granted(backend.acquire(an_ask("video:1", ttl=SHORT)))
        other = an_ask("video:1")
        eventually(lambda: isinstance(backend.acquire(other), Grant))
        assert time.monotonic() - asked >= SHORT / 1000 - 0.002
        assert backend.get("video:1").token == other.token

    @lapsing
    def test_a_token_whose_lease_lapsed_gets_the_lock_as_a_new_grant(self, backend):
        mine = an_ask("video:1", ttl=SHORT)
        first = granted(backend.acquire(mine))
        lapse(backend, "video:1")
        assert granted(backend.acquire(mine)).fence > first.fence

    def test_of_many_threads_exactly_one_is_granted_each_lock(self, backend):
        names = [f"round:{number}" for number in range(25)]
        grants: list[str] = []
        ready = threading.Barrier(6)

        def ask_for_all():
            try:
                ready.wait()
                grants.extend(name for name in names if isinstance(backend.acquire(an_ask(name)), Grant))
            finally:
                backend.close_idle()

        threads = [threading.Thread(target=ask_for_all) for _ in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert sorted(grants) == sorted(names)

    def test_what_cannot_be_read_of_a_holder_is_left_out(self, backend):
        backend.acquire(an_ask("a", holder='{"host": "h", "pid": "x", "colour": "red"}'))
        backend.acquire(an_ask("b", holder="[1]"))
        assert backend.get("a").holder == Holder(host="h")
        assert backend.get("b").holder == Holder()

    def test_another_object_for_the_same_store_sees_the_lock(self, backend, store):
        mine = an_ask("video:1")
        granted(backend.acquire(mine))
        other = make(store)
        assert isinstance(other.acquire(an_ask("video:1")), Busy)
        assert other.release("video:1", mine.token) is Released.RELEASED
        other.close()
        granted(backend.acquire(an_ask("video:1")))


class TestFence:
    def test_it_grows_from_holder_to_holder(self, backend):
        fences = []
        for _ in range(20):
            mine = an_ask("video:1")
            fences.append(granted(backend.acquire(mine)).fence)
            assert backend.release("video:1", mine.token) is Released.RELEASED
        assert fences == sorted(set(fences))

    @lapsing
    def test_it_grows_after_a_lapse_and_after_a_removal(self, backend):
        first = granted(backend.acquire(an_ask("video:1", ttl=SHORT)))
        lapse(backend, "video:1")
        second = granted(backend.acquire(an_ask("video:1")))
        assert backend.remove("video:1") is not None
        third = granted(backend.acquire(an_ask("video:1")))
        assert first.fence < second.fence < third.fence

    def test_it_grows_after_all_data_is_lost(self, backend, store):
        before = granted(backend.acquire(an_ask("video:1"))).fence
        clear(store)
        seconds = time.time()
        eventually(lambda: time.time() > seconds + 0.002)  # a store's clock may be no finer than a millisecond
        assert granted(backend.acquire(an_ask("video:1"))).fence > before


class TestReleasing:
    def test_the_holder_frees_the_lock(self, backend):
        mine = an_ask("video:1")
        backend.acquire(mine)
        assert backend.release("video:1", mine.token) is Released.RELEASED
        assert backend.get("video:1") is None
        granted(backend.acquire(an_ask("video:1")))

    def test_another_token_touches_nothing(self, backend):
        mine = an_ask("video:1")
        backend.acquire(mine)
        assert backend.release("video:1", new_token()) is Released.NOT_YOURS
        assert backend.get("video:1").token == mine.token

    def test_a_lock_that_nobody_has_is_gone(self, backend):
        mine = an_ask("video:1")
        assert backend.release("video:1", mine.token) is Released.GONE
        backend.acquire(mine)
        backend.release("video:1", mine.token)
        assert backend.release("video:1", mine.token) is Released.GONE

    @lapsing
    def test_a_lock_whose_lease_lapsed_is_gone(self, backend):
        mine = an_ask("video:1", ttl=SHORT)
        backend.acquire(mine)
        lapse(backend, "video:1")
        assert backend.release("video:1", mine.token) is Released.GONE

    @lapsing
    def test_a_lapsed_holder_does_not_touch_its_successor(self, backend):
        mine, other = an_ask("video:1", ttl=SHORT), an_ask("video:1")
        backend.acquire(mine)
        lapse(backend, "video:1")
        granted(backend.acquire(other))
        assert backend.release("video:1", mine.token) is Released.NOT_YOURS
        assert backend.extend("video:1", mine.token, 60_000, 60_000) is False
        assert backend.renew([Renewal("video:1", mine.token, 60_000)]) == [RenewalResult.LOST]
        assert backend.get("video:1").token == other.token


class TestExtending:
    def test_it_moves_both_the_lease_and_the_end_of_the_hold(self, backend):
        mine = an_ask("video:1", ttl=2000, hold=4000)
        backend.acquire(mine)
        assert backend.extend("video:1", mine.token, 50_000, 90_000) is True
        record = backend.get("video:1")
        assert 40_000 < record.ttl <= 50_000
        assert 80_000 < record.until - record.now <= 90_000

    def test_only_the_holder_can(self, backend):
        mine = an_ask("video:1", ttl=5000, hold=5000)
        backend.acquire(mine)
        assert backend.extend("video:1", new_token(), 50_000, 90_000) is False
        record = backend.get("video:1")
        assert record.token == mine.token
        assert record.ttl <= 5000

    @lapsing
    def test_a_lock_that_is_gone_is_not_brought_back(self, backend):
        mine = an_ask("video:1", ttl=SHORT)
        assert backend.extend("video:1", mine.token, 60_000, 60_000) is False
        backend.acquire(mine)
        lapse(backend, "video:1")
        assert backend.extend("video:1", mine.token, 60_000, 60_000) is False
        assert backend.get("video:1") is None


class TestRenewing:
    def test_many_leases_at_once_each_with_an_answer_in_its_place(self, backend):
        held = [an_ask(f"video:{number}", ttl=1000 if number % 2 else 900) for number in range(230)]
        for one in held:
            granted(backend.acquire(an_ask(one.name, one.token, ttl=60_000)))
        asks = [*held[:100], an_ask("video:7"), an_ask("nobody"), *held[100:]]
        answers = backend.renew([Renewal(one.name, one.token, 60_000 if one.ttl_ms == 900 else 50_000) for one in asks])
        assert (
            answers
            == [RenewalResult.RENEWED] * 100 + [RenewalResult.LOST, RenewalResult.LOST] + [RenewalResult.RENEWED] * 130
        )
        assert backend.get("nobody") is None

    @lapsing
    def test_it_keeps_a_lock_beyond_its_first_lease(self, backend):
        mine = an_ask("video:1", ttl=1000)
        asked = time.monotonic()
        backend.acquire(mine)
        while time.monotonic() < asked + 1.3:
            assert backend.renew([Renewal("video:1", mine.token, 1000)]) == [RenewalResult.RENEWED]
            assert isinstance(backend.acquire(an_ask("video:1")), Busy)
            time.sleep(0.1)

    def test_it_leaves_the_end_of_the_hold_alone(self, backend):
        mine = an_ask("video:1", ttl=2000, hold=4000)
        backend.acquire(mine)
        before = backend.get("video:1")
        backend.renew([Renewal("video:1", mine.token, 60_000)])
        after = backend.get("video:1")
        assert (after.until, after.at, after.fence) == (before.until, before.at, before.fence)

    @lapsing
    def test_a_lock_that_is_gone_is_not_brought_back(self, backend):
        mine = an_ask("video:1", ttl=SHORT)
        assert backend.renew([Renewal("video:1", mine.token, 60_000)]) == [RenewalResult.LOST]
        backend.acquire(mine)
        lapse(backend, "video:1")
        assert backend.renew([Renewal("video:1", mine.token, 60_000)]) == [RenewalResult.LOST]
        assert backend.get("video:1") is None

    def test_a_released_lock_is_not_brought_back(self, backend):
        mine = an_ask("video:1")
        backend.acquire(mine)
        backend.release("video:1", mine.token)
        assert backend.renew([Renewal("video:1", mine.token, 60_000)]) == [RenewalResult.LOST]
        assert backend.get("video:1") is None

    def test_nothing_to_renew_is_no_error(self, backend):
        assert backend.renew([]) == []


class TestReading:
    def test_a_lock_that_nobody_has_is_none(self, backend):
        assert backend.get("video:1") is None

    @lapsing
    def test_a_lapsed_lock_is_none(self, backend):
        backend.acquire(an_ask("video:1", ttl=SHORT))
        lapse(backend, "video:1")

    @listing
    def test_the_record_shows_a_renewed_lease(self, backend):
        mine = an_ask("video:1", ttl=2000)
        backend.acquire(mine)
        assert backend.get("video:1").ttl <= 2000
        backend.renew([Renewal("video:1", mine.token, 60_000)])
        assert 50_000 < backend.get("video:1").ttl <= 60_000


@listing
class TestListing:
    def test_held_locks_come_in_order_of_expiry(self, backend):
        for seconds in (50, 20, 40, 10, 30):
            backend.acquire(an_ask(f"video:{seconds}", ttl=seconds * 1000))
        found = backend.records()
        assert [record.name for record in found] == [f"video:{seconds}" for seconds in (10, 20, 30, 40, 50)]
        assert all(0 < record.ttl <= int(record.name[6:]) * 1000 for record in found)
        for record in found:
            same = backend.get(record.name)
            assert (record.token, record.fence, record.at, record.until) == (
                same.token,
                same.fence,
                same.at,
                same.until,
            )

    def test_a_page_is_a_part_of_that_order(self, backend):
        for number in range(12):
            backend.acquire(an_ask(f"video:{number:02}", ttl=60_000 + number * 1000))
        pages = [backend.records(limit=5, offset=offset) for offset in (0, 5, 10, 15)]
        assert [len(page) for page in pages] == [5, 5, 2, 0]
        names = [record.name for page in pages for record in page]
        assert names == [f"video:{number:02}" for number in range(12)]

    def test_a_renewed_lock_takes_its_new_place(self, backend):
        first, second = an_ask("first", ttl=10_000), an_ask("second", ttl=20_000)
        backend.acquire(first)
        backend.acquire(second)
        backend.renew([Renewal("first", first.token, 30_000)])
        assert [record.name for record in backend.records()] == ["second", "first"]
        backend.extend("second", second.token, 40_000, 40_000)
        assert [record.name for record in backend.records()] == ["first", "second"]

    def test_released_and_removed_locks_are_not_listed_anywhere(self, backend):
        released, removed = an_ask("released"), an_ask("removed")
        backend.acquire(released)
        backend.acquire(removed)
        backend.release("released", released.token)
        backend.remove("removed")
        assert backend.records() == []
        assert backend.records(expired=True) == []

    def test_lapsed_locks_are_listed_apart(self, backend):
        backend.acquire(an_ask("lives"))
        backend.acquire(an_ask("second", ttl=10 * SHORT))  # however long a busy machine takes until the next
        backend.acquire(an_ask("first", ttl=SHORT))
        lapse(backend, "second")
        assert [record.name for record in backend.records()] == ["lives"]
        lapsed = backend.records(expired=True)
        assert [record.name for record in lapsed] == ["first", "second"]
        assert all(record.ttl <= 0 for record in lapsed)
        assert [record.name for record in backend.records(expired=True, limit=1, offset=1)] == ["second"]

    def test_a_lapsed_lock_that_is_taken_again_is_live_again(self, backend):
        backend.acquire(an_ask("video:1", ttl=SHORT))
        lapse(backend, "video:1")
        backend.acquire(an_ask("video:1"))
        assert backend.records(expired=True) == []
        assert [record.name for record in backend.records()] == ["video:1"]


class TestRemoving:
    def test_it_takes_the_lock_away_and_returns_what_was_removed(self, backend):
        mine = an_ask("video:1", holder='{"host": "web1"}')
        grant = granted(backend.acquire(mine))
        record = backend.remove("video:1")
        assert (record.name, record.token, record.fence) == ("video:1", mine.token, grant.fence)
        assert record.holder.host == "web1"
        assert backend.get("video:1") is None

    def test_the_holder_finds_its_lock_gone(self, backend):
        mine = an_ask("video:1")
        backend.acquire(mine)
        backend.remove("video:1")
        assert backend.renew([Renewal("video:1", mine.token, 60_000)]) == [RenewalResult.LOST]
        assert backend.extend("video:1", mine.token, 60_000, 60_000) is False
        assert backend.release("video:1", mine.token) is Released.GONE

    def test_with_a_token_only_that_holder_loses_it(self, backend):
        mine = an_ask("video:1")
        backend.acquire(mine)
        assert backend.remove("video:1", new_token()) is None
        assert backend.get("video:1").token == mine.token
        assert backend.remove("video:1", mine.token).token == mine.token
        assert backend.get("video:1") is None

    def test_where_nobody_holds_it_nothing_is_removed(self, backend):
        assert backend.remove("video:1") is None

    @listing
    def test_a_lapsed_lock_is_no_longer_listed_after_it(self, backend):
        backend.acquire(an_ask("video:1", ttl=SHORT))
        lapse(backend, "video:1")
        assert backend.remove("video:1") is None
        assert backend.records(expired=True) == []


NAMES = [
    "video:1",
    "Video:1",
    "VIDEO:1",
    "video:1 ",
    "video: 1",
    "video 1",
    "видео:1",
    "vidéo:1",
    "video:1",
    "video:ß",
    "video:ss",
    "影片:1",
    "🎬:1",
    "%s",
    "a{b}c",
    "'; --",
    "x" * 199 + "a",
    "x" * 199 + "b",
    "影" * 200,
    "#",
    "*",
]


class TestNames:
    def test_different_names_are_different_locks(self, backend):
        asks = [an_ask(name) for name in dict.fromkeys(NAMES)]
        for mine in asks:
            granted(backend.acquire(mine))
        for mine in asks:
            record = backend.get(mine.name)
            assert (record.name, record.token) == (mine.name, mine.token)
        for mine in asks:
            assert backend.release(mine.name, mine.token) is Released.RELEASED, mine.name

    @listing
    def test_they_are_listed_as_they_were_given(self, backend):
        names = list(dict.fromkeys(NAMES))
        for number, name in enumerate(names):
            backend.acquire(an_ask(name, ttl=60_000 + number * 1000))
        assert [record.name for record in backend.records()] == names


class TestCoroutines:
    def test_the_twins_answer_alike(self, backend):
        async def main():
            mine = an_ask("video:1", ttl=5000)
            grant = granted(await backend.aacquire(mine))
            assert granted(await backend.aacquire(mine)).fence == grant.fence
            assert isinstance(await backend.aacquire(an_ask("video:1")), Busy)
            assert (await backend.aget("video:1")).token == mine.token
            assert await backend.aextend("video:1", mine.token, 60_000, 60_000) is True
            assert await backend.aextend("video:1", new_token(), 60_000, 60_000) is False
            assert await backend.arelease("video:1", new_token()) is Released.NOT_YOURS
            assert await backend.arelease("video:1", mine.token) is Released.RELEASED
            assert await backend.arelease("video:1", mine.token) is Released.GONE
            assert await backend.aget("video:1") is None

        async_to_sync(main)()

    def test_the_plain_verbs_work_in_the_thread_of_an_event_loop(self, backend, store):
        async def main():
            mine = an_ask("video:1")
            granted(backend.acquire(mine))
            assert backend.get("video:1").token == mine.token
            if store in LISTING:
                assert [record.name for record in backend.records()] == ["video:1"]
            assert backend.renew([Renewal("video:1", mine.token, 60_000)]) == [RenewalResult.RENEWED]
            assert backend.extend("video:1", mine.token, 60_000, 60_000) is True
            assert backend.release("video:1", mine.token) is Released.RELEASED
            assert backend.remove("video:1") is None

        asyncio.run(main())


class TestWaiting:
    def test_a_waiter_gets_a_free_lock_at_once(self, backend):
        mine = an_ask("video:1")
        with backend.waiter(mine) as waiter:
            granted(waiter.acquire())
        assert backend.get("video:1").token == mine.token

    def test_a_waiter_gets_the_lock_after_its_release(self, backend):
        holder, mine = an_ask("video:1"), an_ask("video:1")
        backend.acquire(holder)
        with backend.waiter(mine) as waiter:
            assert isinstance(waiter.acquire(), Busy)
            backend.release("video:1", holder.token)
            eventually(lambda: waiter.wait(0.5) or isinstance(waiter.acquire(), Grant))
        assert backend.get("video:1").token == mine.token

    @lapsing
    def test_a_waiter_notices_that_the_holder_died(self, backend):
        asked = time.monotonic()
        backend.acquire(an_ask("video:1", ttl=300))
        mine = an_ask("video:1")
        with backend.waiter(mine) as waiter:
            eventually(lambda: isinstance(waiter.acquire(), Grant) or waiter.wait(0.1))
        assert time.monotonic() - asked >= 0.298
        assert backend.get("video:1").token == mine.token

    def test_a_waiter_that_gives_up_leaves_nothing_behind(self, backend):
        holder = an_ask("video:1")
        backend.acquire(holder)
        with backend.waiter(an_ask("video:1")) as waiter:
            assert isinstance(waiter.acquire(), Busy)
            assert waiter.wait(0.01) is None
        assert backend.get("video:1").waiting == 0
        backend.release("video:1", holder.token)
        granted(backend.acquire(an_ask("video:1")))

    def test_a_coroutine_waits_without_blocking_the_others(self, backend):
        async def main():
            holder, mine = an_ask("video:1"), an_ask("video:1")
            await backend.aacquire(holder)
            waiter = backend.waiter(mine)
            try:
                assert isinstance(await waiter.aacquire(), Busy)
                release = asyncio.create_task(backend.arelease("video:1", holder.token))
                async with asyncio.timeout(10):
                    while await waiter.await_(0.5) is None and isinstance(await waiter.aacquire(), Busy):
                        pass
                assert await release is Released.RELEASED
            finally:
                await waiter.aleave()
            assert (await backend.aget("video:1")).token == mine.token

        async_to_sync(main)()


@waking
class TestHandingOver:
    def test_waiters_get_the_lock_in_order_of_arrival(self, backend):
        holder = an_ask("video:1")
        backend.acquire(holder)
        order: list[int] = []

        def wait_for_it(number):
            mine = an_ask("video:1")
            with backend.waiter(mine) as waiter:
                while isinstance(waiter.acquire(), Busy) and waiter.wait(10) is None:
                    pass
            order.append(number)
            backend.release("video:1", mine.token)

        threads = []
        for number in range(6):
            threads.append(threading.Thread(target=wait_for_it, args=(number,), daemon=True))
            threads[-1].start()
            eventually(lambda number=number: backend.get("video:1").waiting == number + 1)
        backend.release("video:1", holder.token)
        for thread in threads:
            thread.join(20)
        assert order == [0, 1, 2, 3, 4, 5]

    def test_who_does_not_wait_does_not_overtake_who_does(self, backend):
        holder, mine = an_ask("video:1"), an_ask("video:1")
        backend.acquire(holder)
        with backend.waiter(mine) as waiter:
            waiter.acquire()
            backend.release("video:1", holder.token)
            busy = backend.acquire(an_ask("video:1"))
            assert isinstance(busy, Busy)
            assert busy.record.token == mine.token
            granted(waiter.wait(5))

    def test_what_is_handed_over_is_a_grant_that_a_renewal_makes_whole(self, backend):
        holder, mine = an_ask("video:1"), an_ask("video:1", ttl=60_000)
        before = granted(backend.acquire(holder))
        with backend.waiter(mine) as waiter:
            waiter.acquire()
            backend.release("video:1", holder.token)
            grant = granted(waiter.wait(5))
        assert grant.fence > before.fence
        assert backend.get("video:1").fence == grant.fence
        assert backend.renew([Renewal("video:1", mine.token, 60_000)]) == [RenewalResult.RENEWED]
        assert backend.get("video:1").ttl > 50_000
        assert granted(backend.acquire(mine)).fence == grant.fence

    def test_a_removed_lock_is_handed_over_as_well(self, backend):
        backend.acquire(an_ask("video:1"))
        mine = an_ask("video:1")
        with backend.waiter(mine) as waiter:
            waiter.acquire()
            assert backend.remove("video:1") is not None
            granted(waiter.wait(5))

    def test_a_waiter_that_has_left_is_passed_over(self, backend):
        holder, mine = an_ask("video:1"), an_ask("video:1")
        backend.acquire(holder)
        first = backend.waiter(an_ask("video:1"))
        first.acquire()
        with backend.waiter(mine) as second:
            second.acquire()
            first.leave()
            backend.release("video:1", holder.token)
            granted(second.wait(5))

    def test_a_waiter_that_leaves_with_the_lock_passes_it_on(self, backend):
        holder, mine = an_ask("video:1"), an_ask("video:1")
        backend.acquire(holder)
        first = backend.waiter(an_ask("video:1"))
        first.acquire()
        with backend.waiter(mine) as second:
            second.acquire()
            backend.release("video:1", holder.token)
            assert backend.get("video:1").token == first.request.token
            first.leave()
            granted(second.wait(5))

    def test_the_last_waiter_leaves_a_free_lock_behind(self, backend):
        holder = an_ask("video:1")
        backend.acquire(holder)
        with backend.waiter(an_ask("video:1")) as waiter:
            waiter.acquire()
            backend.release("video:1", holder.token)
        assert backend.get("video:1") is None

    def test_a_frozen_waiter_holds_the_next_back_for_a_short_claim_only(self, backend):
        holder, mine = an_ask("video:1"), an_ask("video:1")
        backend.acquire(holder)
        frozen = backend.waiter(an_ask("video:1", ttl=60_000))
        frozen.acquire()
        with backend.waiter(mine) as waiter:
            waiter.acquire()
            backend.release("video:1", holder.token)
            eventually(lambda: waiter.wait(0.5) or isinstance(waiter.acquire(), Grant))
        assert backend.get("video:1").token == mine.token
        frozen.leave()
        assert backend.get("video:1").token == mine.token

    def test_a_cancelled_coroutine_gives_up_its_place(self, backend):
        async def main():
            holder, mine = an_ask("video:1"), an_ask("video:1")
            await backend.aacquire(holder)
            joined = asyncio.Event()

            async def wait_for_it():
                waiter = backend.waiter(an_ask("video:1"))
                try:
                    await waiter.aacquire()
                    joined.set()
                    await waiter.await_(30)
                finally:
                    await waiter.aleave()

            task = asyncio.create_task(wait_for_it())
            await joined.wait()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            await backend.arelease("video:1", holder.token)
            granted(await backend.aacquire(mine))

        async_to_sync(main)()
