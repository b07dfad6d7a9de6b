"""The contract of a store that lists its locks."""

from __future__ import annotations

from django_tasklock.backends.contract.lists import Counts
from django_tasklock.backends.contract.stores import LockStore
from django_tasklock.types import Released, Renewal, RenewalResult
from tests.contract.conformance.store import NAMES, StoreContract, held, lapse, ttl_of
from tests.support.stores import an_ask, eventually, granted, new_token


class ListingContract(StoreContract):
    """Locks are listed in order of expiry and counted by state. Lapsed locks are listed separately, and forgotten."""

    # Reading

    def test_the_record_shows_a_renewed_lease(self, backend: LockStore) -> None:
        mine = an_ask("video:1", ttl=2000)
        backend.acquire(mine)
        first = held(backend.get("video:1"))
        assert ttl_of(first) <= 2000
        backend.renew([Renewal("video:1", mine.token, 60_000)])
        assert 50_000 < ttl_of(backend.get("video:1")) <= 60_000
        granted(backend.acquire(mine._replace(ttl_ms=70_000)))  # its answer was lost, say
        again = held(backend.get("video:1"))
        assert 60_000 < ttl_of(again) <= 70_000
        assert again.at == first.at

    # Listing

    def test_held_locks_come_in_pages_in_order_of_expiry(self, backend: LockStore) -> None:
        for number in (7, 2, 11, 5, 0, 3, 9, 1, 10, 6, 4, 8):
            backend.acquire(an_ask(f"video:{number:02}", ttl=60_000 + number * 1000))
        pages = [backend.records(limit=5, offset=offset) for offset in (0, 5, 10, 15)]
        assert [len(page) for page in pages] == [5, 5, 2, 0]
        found = [record for page in pages for record in page]
        assert [record.name for record in found] == [f"video:{number:02}" for number in range(12)]
        for record in found:
            same = held(backend.get(record.name))
            assert (record.token, record.fence, record.asked) == (same.token, same.fence, same.asked)
            assert abs(record.at - same.at) < 5000  # each instance of a quorum has a time of its own
            assert abs(record.until - same.until) < 5000
            assert 0 < ttl_of(record) <= 60_000 + int(record.name[6:]) * 1000

    def test_a_renewed_or_extended_lock_moves_to_its_new_place_in_the_list(self, backend: LockStore) -> None:
        first, second = an_ask("first", ttl=10_000), an_ask("second", ttl=20_000)
        backend.acquire(first)
        backend.acquire(second)
        backend.renew([Renewal("first", first.token, 30_000)])
        assert [record.name for record in backend.records()] == ["second", "first"]
        backend.extend("second", second.token, 40_000, 40_000)
        assert [record.name for record in backend.records()] == ["first", "second"]
        later = an_ask("first", ttl=50_000)._replace(supersedes=first.token)
        granted(backend.acquire(later))
        assert [record.name for record in backend.records()] == ["second", "first"]

    def test_released_and_removed_locks_are_not_listed_anywhere(self, backend: LockStore) -> None:
        released, removed = an_ask("released"), an_ask("removed")
        backend.acquire(released)
        backend.acquire(removed)
        backend.release("released", released.token)
        backend.remove("removed")
        assert backend.records() == []
        assert backend.records("orphaned") == []

    def test_every_state_is_listed_and_counted(self, backend: LockStore) -> None:
        backend.acquire(an_ask("lives"))
        backend.acquire(an_ask("expiring", ttl=8000))
        lapse(backend, an_ask("first"), an_ask("second"))
        # In a quorum, one instance may have them a moment longer than the majority, or be slow to say so.
        eventually(lambda: [record.name for record in backend.records("orphaned")] == ["first", "second"])
        eventually(lambda: backend.counts() == Counts(live=2, expiring=1, no_expiry=0, orphaned=2))
        assert [record.name for record in backend.records()] == ["expiring", "lives"]
        assert [record.name for record in backend.records("expiring")] == ["expiring"]
        assert backend.records("no_expiry") == []
        lapsed = backend.records("orphaned")
        assert all(ttl_of(record) <= 0 for record in lapsed)
        assert [record.name for record in backend.records("orphaned", limit=1, offset=1)] == ["second"]
        [found] = [record for record in map(backend.get_orphaned, ("lives", "first", "nobody's")) if record is not None]
        assert (found.name, found.token) == ("first", lapsed[0].token)
        assert ttl_of(found) <= 0

    def test_a_lapsed_lock_that_is_taken_again_is_live_again(self, backend: LockStore) -> None:
        lapse(backend, an_ask("video:1"))
        granted(backend.acquire(an_ask("video:1")))
        assert backend.records("orphaned") == []
        assert backend.get_orphaned("video:1") is None
        assert [record.name for record in backend.records()] == ["video:1"]

    # Removing and forgetting

    def test_a_lapsed_lock_is_not_listed_after_remove(self, backend: LockStore) -> None:
        lapse(backend, an_ask("video:1"))
        assert backend.remove("video:1") is None
        assert backend.records("orphaned") == []

    def test_lapsed_locks_are_forgotten_a_few_at_a_time_and_held_ones_never(self, backend: LockStore) -> None:
        backend.acquire(an_ask("alive"))
        dead = [an_ask(f"dead:{number}") for number in range(5)]
        fences = lapse(backend, *dead)
        granted(backend.acquire(an_ask("dead:4")))
        assert backend.prune(2) == 2
        assert [record.name for record in backend.records("orphaned")] == ["dead:2", "dead:3"]
        assert backend.prune(10) == 2
        assert sorted(record.name for record in backend.records()) == ["alive", "dead:4"]
        # Of several instances one may have heard of a lock late.
        eventually(lambda: backend.prune(10) == 0 and backend.counts() == Counts(2, 0, 0, 0))
        assert backend.release("dead:0", dead[0].token) is Released.GONE
        assert backend.renew([Renewal("dead:0", dead[0].token, 5000)]) == [RenewalResult.LOST]
        assert granted(backend.acquire(an_ask("dead:0"))).fence > fences[0]

    def test_a_lock_that_has_an_end_keeps_it(self, backend: LockStore) -> None:
        mine = an_ask("video:1", ttl=50_000)
        backend.acquire(mine)
        for token in (mine.token, new_token(), ""):
            assert backend.set_expiry("video:1", token, 1000) is False
        assert backend.set_expiry("nothing", "", 1000) is False
        assert 40_000 < ttl_of(backend.get("video:1")) <= 50_000
        assert backend.get("nothing") is None

    # Names

    def test_names_are_listed_as_they_were_given(self, backend: LockStore) -> None:
        names = list(dict.fromkeys(NAMES))
        for number, name in enumerate(names):
            backend.acquire(an_ask(name, ttl=60_000 + number * 1000))
        assert [record.name for record in backend.records()] == names
