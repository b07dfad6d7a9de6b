"""The contract of a store that lists its locks."""

from __future__ import annotations

import asyncio

from django_tasklock.backends.contract.stores import LockStore
from django_tasklock.types import Renewal
from tests.contract.conformance.store import (
    NAMES,
    SHORT,
    StoreContract,
    an_ask,
    eventually,
    held,
    lapse,
    ttl_of,
)


class ListingContract(StoreContract):
    """Locks are listed in order of expiry. Lapsed locks are listed separately."""

    # Reading

    def test_the_record_shows_a_renewed_lease(self, backend: LockStore) -> None:
        mine = an_ask("video:1", ttl=2000)
        backend.acquire(mine)
        assert ttl_of(backend.get("video:1")) <= 2000
        backend.renew([Renewal("video:1", mine.token, 60_000)])
        assert 50_000 < ttl_of(backend.get("video:1")) <= 60_000

    # Listing

    def test_held_locks_come_in_order_of_expiry(self, backend: LockStore) -> None:
        for seconds in (50, 20, 40, 10, 30):
            backend.acquire(an_ask(f"video:{seconds}", ttl=seconds * 1000))
        found = backend.records()
        assert [record.name for record in found] == [f"video:{seconds}" for seconds in (10, 20, 30, 40, 50)]
        assert all(0 < ttl_of(record) <= int(record.name[6:]) * 1000 for record in found)
        for record in found:
            same = held(backend.get(record.name))
            assert (record.token, record.fence, record.at, record.until) == (
                same.token,
                same.fence,
                same.at,
                same.until,
            )

    def test_pages_follow_the_order_of_expiry(self, backend: LockStore) -> None:
        for number in range(12):
            backend.acquire(an_ask(f"video:{number:02}", ttl=60_000 + number * 1000))
        pages = [backend.records(limit=5, offset=offset) for offset in (0, 5, 10, 15)]
        assert [len(page) for page in pages] == [5, 5, 2, 0]
        names = [record.name for page in pages for record in page]
        assert names == [f"video:{number:02}" for number in range(12)]

    def test_a_renewed_lock_moves_to_its_new_place_in_the_list(self, backend: LockStore) -> None:
        first, second = an_ask("first", ttl=10_000), an_ask("second", ttl=20_000)
        backend.acquire(first)
        backend.acquire(second)
        backend.renew([Renewal("first", first.token, 30_000)])
        assert [record.name for record in backend.records()] == ["second", "first"]
        backend.extend("second", second.token, 40_000, 40_000)
        assert [record.name for record in backend.records()] == ["first", "second"]

    def test_released_and_removed_locks_are_not_listed_anywhere(self, backend: LockStore) -> None:
        released, removed = an_ask("released"), an_ask("removed")
        backend.acquire(released)
        backend.acquire(removed)
        backend.release("released", released.token)
        backend.remove("removed")
        assert backend.records() == []
        assert backend.records("orphaned") == []

    def test_lapsed_locks_are_listed_apart(self, backend: LockStore) -> None:
        backend.acquire(an_ask("lives"))
        backend.acquire(an_ask("second", ttl=10 * SHORT))  # longer than a busy machine needs for the next line
        backend.acquire(an_ask("first", ttl=SHORT))
        lapse(backend, "second")
        # In a quorum, one instance may have it a moment longer than the majority.
        eventually(lambda: [record.name for record in backend.records()] == ["lives"])
        lapsed = backend.records("orphaned")
        assert [record.name for record in lapsed] == ["first", "second"]
        assert all(ttl_of(record) <= 0 for record in lapsed)
        assert [record.name for record in backend.records("orphaned", limit=1, offset=1)] == ["second"]
        [found] = [record for record in map(backend.get_orphaned, ("lives", "first", "nobody's")) if record is not None]
        assert found.name == "first"
        assert ttl_of(found) <= 0
        assert found.token == lapsed[0].token

    def test_a_lapsed_lock_that_is_taken_again_is_live_again(self, backend: LockStore) -> None:
        backend.acquire(an_ask("video:1", ttl=SHORT))
        lapse(backend, "video:1")
        backend.acquire(an_ask("video:1"))
        assert backend.records("orphaned") == []
        assert backend.get_orphaned("video:1") is None
        assert [record.name for record in backend.records()] == ["video:1"]

    # Removing

    def test_a_lapsed_lock_is_not_listed_after_remove(self, backend: LockStore) -> None:
        backend.acquire(an_ask("video:1", ttl=SHORT))
        lapse(backend, "video:1")
        assert backend.remove("video:1") is None
        assert backend.records("orphaned") == []

    # Names

    def test_names_are_listed_as_they_were_given(self, backend: LockStore) -> None:
        names = list(dict.fromkeys(NAMES))
        for number, name in enumerate(names):
            backend.acquire(an_ask(name, ttl=60_000 + number * 1000))
        assert [record.name for record in backend.records()] == names

    def test_locks_can_be_listed_in_the_thread_of_an_event_loop(self, backend: LockStore) -> None:
        async def main() -> None:
            backend.acquire(an_ask("video:1"))
            assert [record.name for record in backend.records()] == ["video:1"]

        asyncio.run(main())
