"""The contract of ``backends.base_permits``, and every store that has permits through it."""

from __future__ import annotations

import asyncio
import json
import threading
import time

import pytest

from django_tasklock.backends.contract.permits import Permits
from django_tasklock.exceptions import TaskLockError
from django_tasklock.types import Busy, Grant, Holder, Released, Renewal, RenewalResult
from tests.support.permits import a_request, clear_permits
from tests.support.stores import BEYOND, eventually, granted, make, new_token, stores
from tests.support.twins import TWINS, call

SHORT = 120  # ms: a lease that is to lapse
NAME = "transcode"


@pytest.fixture(params=stores("redis", "database", "memory", *BEYOND))
def permits(request) -> Permits:
    """The permits of an empty store."""
    clear_permits(request.param)
    backend = make(request.param)
    yield backend.permits
    backend.close_idle()
    backend.close()


waking = pytest.mark.parametrize("permits", stores("redis", "memory", *BEYOND), indirect=True)


def fill(permits: Permits, limit: int = 3, number: int | None = None, **terms: object) -> list[str]:
    """Take permits until none, or ``number``, are left; the tokens."""
    asks = [a_request(NAME, limit, **terms) for _ in range(limit if number is None else number)]
    for ask in asks:
        granted(permits.acquire(ask))
    return [ask.token for ask in asks]


def tokens(permits: Permits, name: str = NAME) -> list[str]:
    return [record.token for record in permits.members(name)]


class TestAcquiring:
    @TWINS
    def test_as_many_as_the_limit_are_granted_and_no_more(self, permits, way):
        taken = [call(way, permits, "acquire", a_request(NAME, 3, ttl=5000)) for _ in range(3)]
        assert [answer.ttl for answer in taken] == [5000] * 3
        assert len({answer.fence for answer in taken}) == 3
        assert sorted(answer.fence for answer in taken) == [answer.fence for answer in taken]
        assert isinstance(call(way, permits, "acquire", a_request(NAME, 3)), Busy)

    def test_whoever_is_refused_hears_of_the_member_whose_lease_ends_first(self, permits):
        holder = {"host": "web1", "pid": 7, "boot": "b", "task": "app.tasks.t", "task_id": "id-1"}
        fill(permits, 3, 2, ttl=50_000)
        first = a_request(NAME, 3, ttl=4000, hold=9000, holder=json.dumps(holder))
        granted(permits.acquire(first))
        busy = permits.acquire(a_request(NAME, 3))
        assert isinstance(busy, Busy)
        assert busy.record is not None
        assert (busy.record.name, busy.record.token, busy.record.holder) == (NAME, first.token, Holder(**holder))
        assert 0 < busy.remaining <= 4000
        assert busy.record.until == busy.record.at + 9000

    def test_asking_again_with_the_same_token_takes_no_second_permit(self, permits):
        """The reply to the first may have been lost. Gold standard 8.5."""
        mine = a_request(NAME, 2, ttl=5000)
        first = granted(permits.acquire(mine))
        again = granted(permits.acquire(mine._replace(ttl_ms=60_000)))
        assert again.fence == first.fence
        assert tokens(permits) == [mine.token]
        assert permits.members(NAME)[0].ttl > 5000
        assert granted(permits.acquire(a_request(NAME, 2)))

    def test_limiters_do_not_see_each_other(self, permits):
        fill(permits, 1)
        assert granted(permits.acquire(a_request("other", 1)))
        assert granted(permits.acquire(a_request(NAME + ":", 1)))
        assert sorted(permits.names()) == sorted([NAME, "other", NAME + ":"])

    def test_the_limit_is_that_of_the_caller(self, permits):
        fill(permits, 3)
        assert isinstance(permits.acquire(a_request(NAME, 2)), Busy)
        assert isinstance(permits.acquire(a_request(NAME, 3)), Busy)
        assert granted(permits.acquire(a_request(NAME, 4)))

    def test_a_lowered_limit_takes_nothing_away_and_admits_nobody_until_enough_have_left(self, permits):
        taken = fill(permits, 3)
        for token in taken[:2]:
            assert isinstance(permits.acquire(a_request(NAME, 1)), Busy)
            permits.release(NAME, token)
        assert isinstance(permits.acquire(a_request(NAME, 1)), Busy)
        permits.release(NAME, taken[2])
        assert granted(permits.acquire(a_request(NAME, 1)))


class TestReleasing:
    @TWINS
    def test_a_released_permit_is_free(self, permits, way):
        taken = fill(permits)
        assert call(way, permits, "release", NAME, taken[1]) is Released.RELEASED
        assert tokens(permits) == [taken[0], taken[2]]
        assert granted(permits.acquire(a_request(NAME, 3)))

    def test_a_permit_released_twice_makes_room_once(self, permits):
        """Gold standard 8.4."""
        taken = fill(permits)
        assert permits.release(NAME, taken[0]) is Released.RELEASED
        assert permits.release(NAME, taken[0]) is Released.GONE
        assert permits.release(NAME, new_token()) is Released.GONE
        granted(permits.acquire(a_request(NAME, 3)))
        assert isinstance(permits.acquire(a_request(NAME, 3)), Busy)

    def test_the_last_release_leaves_nothing_behind(self, permits):
        for token in fill(permits):
            permits.release(NAME, token)
        assert permits.members(NAME) == []
        assert permits.names() == []

    def test_a_token_is_good_for_its_own_limiter_only(self, permits):
        [mine] = fill(permits, 1)
        assert permits.release("other", mine) is Released.GONE
        assert permits.remove("other", mine) is None
        assert not permits.extend("other", mine, 1000, 1000)
        assert tokens(permits) == [mine]


class TestLeases:
    def test_a_member_that_says_no_more_is_none_when_its_lease_is_over(self, permits):
        dead, alive = fill(permits, 2, 1, ttl=10 * SHORT), fill(permits, 2, 1)
        assert isinstance(permits.acquire(a_request(NAME, 2)), Busy)
        eventually(lambda: tokens(permits) == alive)
        assert granted(permits.acquire(a_request(NAME, 2)))
        assert isinstance(permits.acquire(a_request(NAME, 2)), Busy)
        assert permits.release(NAME, dead[0]) is Released.GONE
        assert isinstance(permits.acquire(a_request(NAME, 2)), Busy)

    def test_a_batch_of_many_limiters_is_renewed_at_once_and_what_lapsed_stays_lapsed(self, permits):
        """Gold standard 8.9: a renewal brings nothing back."""
        asks = [
            a_request(f"limiter:{number % 7}", 100, ttl=SHORT if number % 3 == 0 else 60_000) for number in range(230)
        ]
        for ask in asks:
            granted(permits.acquire(ask))
        eventually(lambda: sum(len(permits.members(f"limiter:{number}")) for number in range(7)) == 153)
        kept = permits.renew([Renewal(ask.name, ask.token, 90_000) for ask in asks])
        assert kept == [RenewalResult.LOST if number % 3 == 0 else RenewalResult.RENEWED for number in range(230)]
        left = [record.ttl for number in range(7) for record in permits.members(f"limiter:{number}")]
        assert len(left) == 153
        assert min(left) > 60_000

    def test_renewing_what_was_never_there_is_lost(self, permits):
        assert permits.renew([Renewal(NAME, new_token(), 1000)]) == [RenewalResult.LOST]
        assert permits.renew([]) == []
        assert permits.members(NAME) == []

    @TWINS
    def test_extending_begins_the_timeout_anew(self, permits, way):
        [mine] = fill(permits, 1, ttl=5000, hold=6000)
        before = permits.members(NAME)[0]
        assert call(way, permits, "extend", NAME, mine, 60_000, 600_000)
        after = permits.members(NAME)[0]
        assert after.until - before.until > 500_000
        assert after.ttl > 50_000
        assert (after.at, after.fence) == (before.at, before.fence)
        assert not call(way, permits, "extend", NAME, new_token(), 60_000, 600_000)


class TestMembers:
    @TWINS
    def test_members_are_listed_with_who_they_are_in_the_order_of_their_grants(self, permits, way):
        taken = [
            a_request(NAME, 3, hold=10_000 * n, holder=json.dumps({"host": f"web{n}", "pid": n, "task": "t"}))
            for n in (1, 2, 3)
        ]
        for ask in taken:
            granted(permits.acquire(ask))
        found = call(way, permits, "members", NAME)
        assert [record.token for record in found] == [ask.token for ask in taken]
        assert [record.holder.host for record in found] == ["web1", "web2", "web3"]
        assert [record.until - record.at for record in found] == [10_000, 20_000, 30_000]
        assert all(record.name == NAME and 0 < record.ttl <= 60_000 for record in found)
        assert call(way, permits, "mine", NAME, taken[1].token).fence == found[1].fence
        assert call(way, permits, "mine", NAME, new_token()) is None
        assert call(way, permits, "members", "other") == []

    def test_one_is_removed_by_its_token_once(self, permits):
        """Gold standard 8.43: never the next one's."""
        taken = fill(permits)
        removed = permits.remove(NAME, taken[1])
        assert removed is not None
        assert removed.token == taken[1]
        assert permits.remove(NAME, taken[1]) is None
        assert tokens(permits) == [taken[0], taken[2]]
        assert permits.renew([Renewal(NAME, taken[1], 1000)]) == [RenewalResult.LOST]

    def test_names_with_any_characters(self, permits):
        names = ["a b", "ü/ñ", "x:*?[]", "%s%d", "#permits:y", "Transcode", "transcode"]
        for name in names:
            granted(permits.acquire(a_request(name, 1)))
            assert isinstance(permits.acquire(a_request(name, 1)), Busy)
        assert sorted(permits.names()) == sorted(names)
        assert [permits.members(name)[0].name for name in names] == names


class TestWaiting:
    def test_a_waiter_has_the_permit_that_is_released(self, permits):
        taken = fill(permits)
        got = []

        def wait():
            with permits.waiter(ask := a_request(NAME, 3)) as waiter:
                while not isinstance(answer := waiter.acquire(), Grant):
                    if (answer := waiter.wait(5)) is not None:
                        break
                got.append((ask.token, answer))
            permits.close_idle()

        thread = threading.Thread(target=wait)
        thread.start()
        if permits.wakes:
            eventually(lambda: permits.members(NAME)[0].waiting == 1)
        began = time.monotonic()
        permits.release(NAME, taken[0])
        thread.join(10)
        assert got
        assert time.monotonic() - began < 2
        assert tokens(permits)[-1] == got[0][0]

    @waking
    def test_waiters_are_served_in_order_of_arrival_and_nobody_passes_them(self, permits):
        taken = fill(permits, 2)
        waiters = [permits.waiter(a_request(NAME, 2)) for _ in range(4)]
        for waiter in waiters:
            assert isinstance(waiter.acquire(), Busy)
        assert permits.members(NAME)[0].waiting == 4
        for number, waiter in enumerate(waiters):
            assert permits.release(NAME, taken.pop(0)) is Released.RELEASED
            assert isinstance(permits.acquire(a_request(NAME, 2)), Busy)
            assert [other.request.token in tokens(permits) for other in waiters].count(True) <= 2
            assert isinstance(waiter.wait(5), Grant), number
            waiter.leave()
            taken.append(waiter.request.token)
        for token in taken:
            permits.release(NAME, token)
        assert permits.members(NAME) == []

    @waking
    def test_whoever_leaves_the_queue_holds_nobody_up_and_takes_nothing_along(self, permits):
        taken = fill(permits, 1)
        gone, stays = (permits.waiter(a_request(NAME, 1)) for _ in range(2))
        assert isinstance(gone.acquire(), Busy)
        assert isinstance(stays.acquire(), Busy)
        gone.leave()
        assert permits.members(NAME)[0].waiting == 1
        permits.release(NAME, taken[0])
        assert isinstance(stays.wait(5), Grant)
        stays.leave()
        assert tokens(permits) == [stays.request.token]

    @waking
    def test_one_that_was_handed_a_permit_and_leaves_without_it_passes_it_on(self, permits):
        taken = fill(permits, 1)
        gone, stays = (permits.waiter(a_request(NAME, 1)) for _ in range(2))
        for waiter in (gone, stays):
            assert isinstance(waiter.acquire(), Busy)
        permits.release(NAME, taken[0])  # given to ``gone``, who does not look
        gone.leave()
        assert isinstance(stays.wait(5), Grant)
        stays.leave()

    @waking
    def test_the_first_in_line_holds_up_those_behind_it_whatever_their_limits(self, permits):
        """Otherwise it would starve while code with a greater limit runs beside it."""
        taken = fill(permits, 3)
        strict, generous = permits.waiter(a_request(NAME, 1)), permits.waiter(a_request(NAME, 5))
        assert isinstance(strict.acquire(), Busy)
        assert isinstance(generous.acquire(), Busy)
        for token in taken[:2]:
            permits.release(NAME, token)
            assert len(tokens(permits)) == 3 - taken.index(token) - 1
        permits.release(NAME, taken[2])
        assert isinstance(strict.wait(5), Grant)
        assert isinstance(generous.wait(5), Grant)
        strict.leave()
        generous.leave()

    @waking
    def test_a_lease_that_ends_serves_the_next_look(self, permits):
        fill(permits, 1, ttl=SHORT)
        with permits.waiter(a_request(NAME, 1)) as waiter:
            assert isinstance(waiter.acquire(), Busy)
            eventually(lambda: isinstance(waiter.acquire(), Grant))

    @waking
    def test_a_coroutine_waits_and_one_that_is_cancelled_leaves_nothing(self, permits):
        taken = fill(permits, 1)

        async def wait(waiter):
            while not isinstance(answer := await waiter.aacquire(), Grant):
                if (answer := await waiter.await_(5)) is not None:
                    break
            return answer

        async def both():
            first, second = permits.waiter(a_request(NAME, 1)), permits.waiter(a_request(NAME, 1))
            task = asyncio.ensure_future(wait(first))
            while (await permits.amembers(NAME))[0].waiting < 1:  # noqa: ASYNC110  # of another process as well
                await asyncio.sleep(0.003)
            other = asyncio.ensure_future(wait(second))
            while (await permits.amembers(NAME))[0].waiting < 2:  # noqa: ASYNC110  # of another process as well
                await asyncio.sleep(0.003)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            await first.aleave()
            await permits.arelease(NAME, taken[0])
            assert isinstance(await asyncio.wait_for(other, 5), Grant)
            await second.aleave()
            assert [record.token for record in await permits.amembers(NAME)] == [second.request.token]

        asyncio.run(both())


def test_a_cache_says_that_it_cannot_count():
    backend = make("cache-core-redis")
    with pytest.raises(TaskLockError, match="CacheBackend has no permits: .* needs Redis or the database"):
        _ = backend.permits
