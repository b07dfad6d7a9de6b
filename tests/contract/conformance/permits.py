"""The contract of a store that has permits, for ``ConcurrencyLimiter``."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator

import pytest
from asgiref.sync import async_to_sync

from django_tasklock.backends.contract.stores import LockStore, Permits
from django_tasklock.types import Busy, Grant, Holder, Released, Renewal, RenewalResult
from tests.contract.conformance.store import StoreContract, held, ttl_of
from tests.support.stores import an_ask, eventually, granted, new_token

NAME = "transcode"
SHORT = 120
"""A lease that soon lapses, in milliseconds."""


class PermitStoreContract(StoreContract):
    """The permits of the store under test. ``clear`` must delete them, too."""

    @pytest.fixture
    def permits(self, backend: LockStore) -> Iterator[Permits]:
        """Yield the permits of an empty store."""
        permits = backend.permits
        yield permits
        permits.close_idle()


class PermitContract(PermitStoreContract):
    """No more callers than the limit have a permit of a name at once, each with a lease of its own."""

    # Acquiring

    def test_as_many_as_the_limit_are_granted_and_no_more(self, backend: LockStore, permits: Permits) -> None:
        granted(backend.acquire(an_ask(NAME)))  # a lock of that name is another thing
        answers = [granted(permits.acquire(an_ask(NAME, limit=3, ttl=5000))) for _ in range(3)]
        assert [answer.ttl for answer in answers] == [5000] * 3
        assert len({answer.fence for answer in answers}) == 3
        assert sorted(answer.fence for answer in answers) == [answer.fence for answer in answers]
        assert isinstance(permits.acquire(an_ask(NAME, limit=3)), Busy)

    def test_a_refusal_names_the_member_whose_lease_ends_first(self, permits: Permits) -> None:
        holder = Holder(host="web1", pid=7, boot="b", task="app.tasks.t", task_id="id-1")
        text = json.dumps({"host": "web1", "pid": 7, "boot": "b", "task": "app.tasks.t", "task_id": "id-1"})
        fill(permits, 3, 2, ttl=50_000)
        first = an_ask(NAME, limit=3, ttl=9000, hold=12_000, holder=text)
        granted(permits.acquire(first))
        busy = permits.acquire(an_ask(NAME, limit=3))
        assert isinstance(busy, Busy)
        record = held(busy.record)
        assert (record.name, record.token, record.holder) == (NAME, first.token, holder)
        assert 0 < (busy.remaining or 0) <= 9000
        assert record.until == record.at + 12_000

    def test_acquiring_again_with_the_same_token_takes_no_second_permit(self, permits: Permits) -> None:
        # The caller asks again if the first reply was lost.
        mine = an_ask(NAME, limit=2, ttl=9000)
        first = granted(permits.acquire(mine))
        again = granted(permits.acquire(mine._replace(ttl_ms=60_000)))
        assert again.fence == first.fence
        assert tokens(permits) == [mine.token]
        assert ttl_of(permits.members(NAME)[0]) > 9000
        assert granted(permits.acquire(an_ask(NAME, limit=2)))

    def test_another_object_for_the_same_store_sees_the_permits(self, permits: Permits) -> None:
        [mine] = fill(permits, 1)
        other = self.make()
        assert isinstance(other.permits.acquire(an_ask(NAME, limit=1)), Busy)
        assert other.permits.release(NAME, mine) is Released.RELEASED
        other.permits.close_idle()
        other.close_idle()
        other.close()
        assert tokens(permits) == []

    def test_a_lowered_limit_revokes_no_permit_and_grants_none_until_enough_are_released(
        self, permits: Permits
    ) -> None:
        taken = fill(permits, 3)
        for token in taken[:2]:
            assert isinstance(permits.acquire(an_ask(NAME, limit=1)), Busy)
            permits.release(NAME, token)
        assert isinstance(permits.acquire(an_ask(NAME, limit=1)), Busy)
        permits.release(NAME, taken[2])
        assert permits.members(NAME) == []
        assert permits.names() == []
        assert granted(permits.acquire(an_ask(NAME, limit=1)))
        assert isinstance(permits.acquire(an_ask(NAME, limit=1)), Busy)
        assert granted(permits.acquire(an_ask(NAME, limit=2)))  # the limit is that of the caller

    def test_of_many_threads_no_more_than_the_limit_are_granted(self, permits: Permits) -> None:
        grants: list[Grant] = []
        ready = threading.Barrier(6)

        def ask_for_some() -> None:
            try:
                ready.wait()
                answers = [permits.acquire(an_ask(NAME, limit=5)) for _ in range(5)]
                grants.extend(answer for answer in answers if isinstance(answer, Grant))
            finally:
                permits.close_idle()

        threads = [threading.Thread(target=ask_for_some) for _ in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert len(grants) == len(tokens(permits)) == 5

    # Releasing

    def test_a_permit_released_twice_makes_room_once(self, permits: Permits) -> None:
        """Gold standard 8.4, of docs/comparison.md."""
        taken = fill(permits)
        assert permits.release(NAME, taken[0]) is Released.RELEASED
        assert permits.release(NAME, taken[0]) is Released.GONE
        assert permits.release(NAME, new_token()) is Released.GONE
        assert permits.release("other", taken[1]) is Released.GONE
        assert permits.remove("other", taken[1]) is None
        assert tokens(permits) == taken[1:]
        granted(permits.acquire(an_ask(NAME, limit=3)))
        assert isinstance(permits.acquire(an_ask(NAME, limit=3)), Busy)

    # Leases

    def test_a_permit_that_is_not_renewed_is_free_when_its_lease_ends(self, permits: Permits) -> None:
        sent = time.monotonic()
        dead, alive = fill(permits, 2, 1, ttl=SHORT), fill(permits, 2, 1)
        mine = an_ask(NAME, limit=2)
        eventually(lambda: isinstance(permits.acquire(mine), Grant))
        assert time.monotonic() - sent >= SHORT / 1000 - 0.002
        assert tokens(permits) == [*alive, mine.token]
        assert isinstance(permits.acquire(an_ask(NAME, limit=2)), Busy)
        assert permits.release(NAME, dead[0]) is Released.GONE
        assert isinstance(permits.acquire(an_ask(NAME, limit=2)), Busy)

    def test_renew_accepts_permits_of_many_limiters_and_does_not_bring_lapsed_ones_back(self, permits: Permits) -> None:
        asks = [
            an_ask(f"limiter:{number % 7}", limit=100, ttl=SHORT if number % 3 == 0 else 60_000)
            for number in range(230)
        ]
        for one in asks:
            granted(permits.acquire(one))
        eventually(lambda: sum(len(permits.members(f"limiter:{number}")) for number in range(7)) == 153)
        kept = permits.renew([Renewal(one.name, one.token, 90_000) for one in asks])
        assert kept == [RenewalResult.LOST if number % 3 == 0 else RenewalResult.RENEWED for number in range(230)]
        left = [ttl_of(record) for number in range(7) for record in permits.members(f"limiter:{number}")]
        assert len(left) == 153
        assert min(left) > 60_000
        assert permits.renew([Renewal("unknown", new_token(), 1000)]) == [RenewalResult.LOST]
        assert permits.members("unknown") == []

    def test_extending_begins_the_timeout_anew(self, permits: Permits) -> None:
        [mine] = fill(permits, 1, ttl=9000, hold=10_000)
        before = permits.members(NAME)[0]
        assert permits.extend(NAME, mine, 60_000, 600_000)
        after = permits.members(NAME)[0]
        assert after.until - before.until > 500_000
        assert ttl_of(after) > 50_000
        assert (after.at, after.fence) == (before.at, before.fence)
        assert not permits.extend(NAME, new_token(), 60_000, 600_000)

    # Members

    def test_members_are_listed_with_their_holders_in_the_order_of_their_grants(self, permits: Permits) -> None:
        taken = [
            an_ask(NAME, limit=3, hold=10_000 * n, holder=json.dumps({"host": f"web{n}", "pid": n, "task": "t"}))
            for n in (1, 2, 3)
        ]
        for one in taken:
            granted(permits.acquire(one))
        found = permits.members(NAME)
        assert [record.token for record in found] == [one.token for one in taken]
        assert [record.holder.host for record in found] == ["web1", "web2", "web3"]
        assert [record.until - record.at for record in found] == [10_000, 20_000, 30_000]
        assert all(record.name == NAME and 0 < ttl_of(record) <= 60_000 for record in found)
        assert held(permits.get_held(NAME, taken[1].token)).fence == found[1].fence
        assert permits.get_held(NAME, new_token()) is None
        assert permits.members("other") == []

    def test_a_member_is_removed_by_its_token_once(self, permits: Permits) -> None:
        taken = fill(permits)
        assert held(permits.remove(NAME, taken[1])).token == taken[1]
        assert permits.remove(NAME, taken[1]) is None
        assert tokens(permits) == [taken[0], taken[2]]
        assert permits.renew([Renewal(NAME, taken[1], 1000)]) == [RenewalResult.LOST]

    def test_names_with_any_characters(self, permits: Permits) -> None:
        names = ["a b", "ü/ñ", "x:*?[]", "%s%d", "#permits:y", "Transcode", "transcode"]
        for name in names:
            granted(permits.acquire(an_ask(name, limit=1)))
            assert isinstance(permits.acquire(an_ask(name, limit=1)), Busy)
        assert sorted(permits.names()) == sorted(names)
        assert [permits.members(name)[0].name for name in names] == names

    # Coroutines and waiting

    def test_the_async_verbs_answer_as_the_plain_ones(self, permits: Permits) -> None:
        async def main() -> None:
            mine = an_ask(NAME, limit=1)
            fence = granted(await permits.aacquire(mine)).fence
            assert isinstance(await permits.aacquire(an_ask(NAME, limit=1)), Busy)
            assert [record.token for record in await permits.amembers(NAME)] == [mine.token]
            assert held(await permits.aget_held(NAME, mine.token)).fence == fence
            assert await permits.aextend(NAME, mine.token, 60_000, 60_000)
            assert await permits.arelease(NAME, mine.token) is Released.RELEASED
            assert await permits.aget_held(NAME, mine.token) is None

        async_to_sync(main)()

    def test_a_waiter_gets_a_permit_that_is_released(self, permits: Permits) -> None:
        taken = fill(permits)
        got: list[str] = []

        def wait() -> None:
            mine = an_ask(NAME, limit=3)
            try:
                with permits.waiter(mine) as waiter:
                    while not isinstance(waiter.acquire(), Grant) and waiter.wait(60) is None:
                        pass
                got.append(mine.token)
            finally:
                permits.close_idle()

        thread = threading.Thread(target=wait, daemon=True)
        thread.start()
        if permits.wakes:
            eventually(lambda: permits.members(NAME)[0].waiting == 1)
        permits.release(NAME, taken[0])
        thread.join(20)  # woken by the release, not after sixty seconds
        assert got
        assert tokens(permits)[-1] == got[0]


def fill(
    permits: Permits, limit: int = 3, number: int | None = None, *, ttl: int = 60_000, hold: int = 3_600_000
) -> list[str]:
    """Acquire ``number`` permits, by default as many as ``limit``, and return their tokens."""
    asks = [an_ask(NAME, limit=limit, ttl=ttl, hold=hold) for _ in range(limit if number is None else number)]
    for one in asks:
        granted(permits.acquire(one))
    return [one.token for one in asks]


def tokens(permits: Permits, name: str = NAME) -> list[str]:
    """Return the tokens of the members, in the order of their grants."""
    return [record.token for record in permits.members(name)]
