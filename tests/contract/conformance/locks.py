"""The contract of every store of locks."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from dataclasses import asdict

from asgiref.sync import async_to_sync

from django_tasklock.backends.contract.stores import LockStore
from django_tasklock.types import Busy, Grant, Holder, Released, Renewal, RenewalResult
from tests.contract.conformance.store import NAMES, StoreContract, held, ttl_of
from tests.support.stores import an_ask, eventually, granted, new_token


class LockContract(StoreContract):
    """Acquiring, extending, renewing, releasing, reading, removing and waiting, in threads and in coroutines."""

    # Acquiring

    def test_a_free_lock_is_granted_for_the_ttl_that_was_asked_for(self, backend: LockStore) -> None:
        grant = granted(backend.acquire(an_ask("video:1", ttl=50_000)))
        assert grant.ttl == 50_000
        assert grant.fence > 0

    def test_a_held_lock_is_busy_and_says_who_holds_it_and_for_how_long(self, backend: LockStore) -> None:
        holder = Holder(host="web1", pid=7, boot="b", task="app.tasks.t", task_id="id-1")
        text = json.dumps({key: value for key, value in asdict(holder).items() if value})
        mine = an_ask("video:1", ttl=50_000, hold=90_000, holder=text)
        grant = granted(backend.acquire(mine))
        busy = backend.acquire(an_ask("video:1"))
        assert isinstance(busy, Busy)
        assert busy.record is not None
        assert (busy.record.name, busy.record.token, busy.record.fence) == ("video:1", mine.token, grant.fence)
        assert busy.record.holder == holder
        assert 0 < (busy.remaining or 0) <= 50_000
        assert busy.record.until == busy.record.at + 90_000
        assert abs(busy.record.now - busy.record.at) < 5000

    def test_asking_again_with_the_same_token_is_granted_again_with_the_same_fence(self, backend: LockStore) -> None:
        mine = an_ask("video:1")
        first = granted(backend.acquire(mine))
        assert granted(backend.acquire(mine)) == first
        assert isinstance(backend.acquire(an_ask("video:1")), Busy)
        assert granted(backend.acquire(mine)) == first
        assert backend.release("video:1", mine.token) is Released.RELEASED
        assert backend.get("video:1") is None

    def test_a_lock_is_granted_to_the_next_when_its_lease_has_lapsed_and_not_before(self, backend: LockStore) -> None:
        first, other = an_ask("video:1"), an_ask("video:1")
        granted(backend.acquire(first))
        sent = time.monotonic()
        assert backend.extend("video:1", first.token, 120, 120)
        eventually(lambda: isinstance(backend.acquire(other), Grant))
        assert time.monotonic() - sent >= 0.118
        assert held(backend.get("video:1")).token == other.token

    def test_of_many_threads_exactly_one_is_granted_each_lock(self, backend: LockStore) -> None:
        names = [f"round:{number}" for number in range(25)]
        grants: list[str] = []
        ready = threading.Barrier(6)

        def ask_for_all() -> None:
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

    def test_unreadable_fields_of_a_holder_are_left_out(self, backend: LockStore) -> None:
        backend.acquire(an_ask("a", holder='{"host": "h", "pid": "x", "colour": "red"}'))
        backend.acquire(an_ask("b", holder="[1]"))
        assert held(backend.get("a")).holder == Holder(host="h")
        assert held(backend.get("b")).holder == Holder()

    def test_another_object_for_the_same_store_sees_the_lock(self, backend: LockStore) -> None:
        mine = an_ask("video:1")
        granted(backend.acquire(mine))
        other = self.make()
        assert isinstance(other.acquire(an_ask("video:1")), Busy)
        other.close()  # and used again, as by the heartbeat of a holder from before the settings were changed
        assert other.renew([Renewal("video:1", mine.token, 60_000)]) == [RenewalResult.RENEWED]
        assert other.release("video:1", mine.token) is Released.RELEASED
        other.close()
        granted(backend.acquire(an_ask("video:1")))

    # Fence

    def test_the_fence_grows_from_holder_to_holder_and_after_all_data_is_lost(self, backend: LockStore) -> None:
        fences = []
        for _ in range(10):
            mine = an_ask("video:1")
            fences.append(granted(backend.acquire(mine)).fence)
            assert backend.release("video:1", mine.token) is Released.RELEASED
        assert fences == sorted(set(fences))
        self.clear()
        seconds = time.time()
        eventually(lambda: time.time() > seconds + 0.002)  # a store's clock may be no finer than a millisecond
        assert granted(backend.acquire(an_ask("video:1"))).fence > fences[-1]

    # Releasing

    def test_only_the_holder_releases_and_only_once(self, backend: LockStore) -> None:
        mine = an_ask("video:1")
        assert backend.release("video:1", mine.token) is Released.GONE
        backend.acquire(mine)
        assert backend.release("video:1", new_token()) is Released.NOT_YOURS
        assert held(backend.get("video:1")).token == mine.token
        assert backend.release("video:1", mine.token) is Released.RELEASED
        assert backend.release("video:1", mine.token) is Released.GONE
        assert backend.renew([Renewal("video:1", mine.token, 60_000)]) == [RenewalResult.LOST]
        assert backend.get("video:1") is None

    # Extending

    def test_its_holder_extends_both_the_lease_and_the_end_of_the_hold(self, backend: LockStore) -> None:
        mine = an_ask("video:1", ttl=20_000, hold=40_000)
        granted(backend.acquire(mine))
        assert backend.extend("video:1", new_token(), 50_000, 90_000) is False
        assert ttl_of(backend.get("video:1")) <= 20_000
        assert backend.extend("video:1", mine.token, 50_000, 90_000) is True
        record = held(backend.get("video:1"))
        assert record.token == mine.token
        assert 40_000 < ttl_of(record) <= 50_000
        assert 80_000 < record.until - record.now <= 90_000

    # Renewing

    def test_renew_answers_for_many_leases_in_their_order(self, backend: LockStore) -> None:
        mine = [an_ask(f"video:{number}", ttl=1000 if number % 2 else 900) for number in range(230)]
        for one in mine:
            granted(backend.acquire(an_ask(one.name, one.token, ttl=60_000)))
        asks = [*mine[:100], an_ask("video:7"), an_ask("free"), *mine[100:]]
        before = held(backend.get("video:7"))
        answers = backend.renew([Renewal(one.name, one.token, 60_000 if one.ttl_ms == 900 else 50_000) for one in asks])
        assert (
            answers
            == [RenewalResult.RENEWED] * 100 + [RenewalResult.LOST, RenewalResult.LOST] + [RenewalResult.RENEWED] * 130
        )
        assert backend.get("free") is None
        after = held(backend.get("video:7"))
        assert after.fence == before.fence
        # Of a majority either one may answer first, and each has the moment at which it was asked.
        assert [abs(after.until - before.until) < 9000, abs(after.at - before.at) < 9000] == [True, True]
        assert backend.renew([]) == []

    def test_the_holder_that_is_asked_to_release_hears_of_it_when_it_renews(self, backend: LockStore) -> None:
        mine = an_ask("video:1", ttl=50_000)
        backend.acquire(mine)
        before = held(backend.get("video:1"))
        assert before.asked == 0
        assert backend.ask_release("video:1", mine.token) is True
        first = held(backend.get("video:1"))
        assert 0 < first.at <= first.asked <= first.now
        assert first.token == mine.token
        assert [abs(first.at - before.at) < 9000, abs(first.until - before.until) < 9000] == [True, True]
        assert 40_000 < ttl_of(first) <= 50_000
        eventually(lambda: held(backend.get("video:1")).now > first.asked)
        assert backend.ask_release("video:1", mine.token) is True
        granted(backend.acquire(mine))
        assert backend.extend("video:1", mine.token, 70_000, 70_000) is True
        assert held(backend.get("video:1")).asked == first.asked
        other = an_ask("video:2")
        granted(backend.acquire(other))
        batch = [Renewal(one.name, one.token, 5000) for one in (mine, an_ask("video:3"), other)]
        for _ in range(2):
            assert backend.renew(batch) == [RenewalResult.ASKED, RenewalResult.LOST, RenewalResult.RENEWED]
        assert backend.release("video:1", mine.token) is Released.RELEASED

    def test_nobody_else_is_asked(self, backend: LockStore) -> None:
        """Gold standard 8.43: the request names who is meant."""
        mine, other = an_ask("video:1"), an_ask("video:1")
        backend.acquire(mine)
        assert backend.ask_release("video:1", other.token) is False
        assert backend.ask_release("video:1", "") is False
        assert held(backend.get("video:1")).asked == 0
        backend.ask_release("video:1", mine.token)
        granted(backend.acquire(other._replace(supersedes=mine.token)))
        assert backend.ask_release("video:1", mine.token) is False
        assert held(backend.get("video:1")).asked == 0
        assert backend.renew([Renewal("video:1", other.token, 5000)]) == [RenewalResult.RENEWED]
        backend.release("video:1", other.token)
        assert backend.ask_release("video:1", other.token) is False

    # Removing

    def test_a_removed_lock_is_free_and_lost_for_its_holder(self, backend: LockStore) -> None:
        """Gold standard 8.43: with a token it is that holder's, or nobody's."""
        mine = an_ask("video:1", holder='{"host": "web1"}')
        for token in (None, mine.token):
            assert backend.remove("video:1", token) is None
        grant = granted(backend.acquire(mine))
        for wrong in (new_token(), ""):
            assert backend.remove("video:1", wrong) is None
        assert held(backend.get("video:1")).token == mine.token
        record = held(backend.remove("video:1", mine.token))
        assert (record.name, record.token, record.fence) == ("video:1", mine.token, grant.fence)
        assert record.holder.host == "web1"
        assert backend.get("video:1") is None
        assert backend.renew([Renewal("video:1", mine.token, 60_000)]) == [RenewalResult.LOST]
        assert backend.extend("video:1", mine.token, 60_000, 60_000) is False
        assert backend.release("video:1", mine.token) is Released.GONE
        granted(backend.acquire(mine))
        assert held(backend.remove("video:1")).token == mine.token
        assert backend.get("video:1") is None

    # Names

    def test_a_counter_is_added_to_and_read_and_is_no_lock(self, backend: LockStore) -> None:
        assert backend.tally("starts:1", 0) == 0
        assert [backend.tally("starts:1") for _ in range(3)] == [1, 2, 3]
        assert self.make().tally("starts:1", 0) == 3
        assert backend.tally("starts:2") == 1
        assert backend.tally("starts:1", -3) == 0
        assert backend.tally("starts:1") == 1
        assert backend.get("starts:1") is None
        mine = an_ask("starts:1")
        granted(backend.acquire(mine))
        assert backend.tally("starts:1") == 2
        assert backend.release("starts:1", mine.token) is Released.RELEASED
        assert backend.tally("starts:1", 0) == 2

    def test_a_release_leaves_a_mark_also_of_what_was_lost(self, backend: LockStore) -> None:
        """Sent twice, too: that says that something has ended, not how often."""
        mine, other = an_ask("video:1"), an_ask("video:1")
        granted(backend.acquire(mine))
        assert backend.release_and_mark("video:1", mine.token, "done:1", 60_000, clear=False).marked
        assert backend.get("video:1") is None
        assert backend.release_and_mark("video:1", mine.token, "done:1", 60_000, clear=False).outcome is Released.GONE
        granted(backend.acquire(other))
        answer = backend.release_and_mark("video:1", mine.token, "done:2", 60_000, clear=True)
        assert (answer.outcome, answer.marked) == (Released.NOT_YOURS, True)
        assert held(backend.get("video:1")).token == other.token
        assert backend.tally("done:1", 0) > 0
        assert backend.tally("done:2", 0) == 1
        assert backend.release_and_mark("video:1", other.token, "", 0, clear=False) == (Released.RELEASED, None, False)

    def test_different_names_are_different_locks(self, backend: LockStore) -> None:
        asks = [an_ask(name) for name in dict.fromkeys(NAMES)]
        for mine in asks:
            granted(backend.acquire(mine))
        for mine in asks:
            record = held(backend.get(mine.name))
            assert (record.name, record.token) == (mine.name, mine.token)
        for mine in asks:
            assert backend.release(mine.name, mine.token) is Released.RELEASED, mine.name

    # Coroutines

    def test_in_an_event_loop_the_async_verbs_answer_as_the_plain_ones(self, backend: LockStore) -> None:
        async def main() -> None:
            mine = an_ask("video:1")
            grant = granted(await backend.aacquire(mine))
            assert granted(await backend.aacquire(mine)).fence == grant.fence
            assert isinstance(await backend.aacquire(an_ask("video:1")), Busy)
            assert held(await backend.aget("video:1")).token == mine.token
            assert await backend.aextend("video:1", mine.token, 60_000, 60_000) is True
            assert await backend.aextend("video:1", new_token(), 60_000, 60_000) is False
            assert await backend.arelease("video:1", new_token()) is Released.NOT_YOURS
            assert await backend.arelease("video:1", mine.token) is Released.RELEASED
            assert await backend.arelease("video:1", mine.token) is Released.GONE
            assert await backend.aget("video:1") is None
            granted(backend.acquire(mine))
            assert held(backend.get("video:1")).token == mine.token
            assert backend.renew([Renewal("video:1", mine.token, 60_000)]) == [RenewalResult.RENEWED]
            assert backend.extend("video:1", mine.token, 60_000, 60_000) is True
            assert backend.release("video:1", mine.token) is Released.RELEASED

        asyncio.run(main())

    # Waiting

    def test_a_waiter_gets_the_lock_after_its_release(self, backend: LockStore) -> None:
        holder, mine = an_ask("video:1"), an_ask("video:1")
        backend.acquire(holder)
        with backend.waiter(mine) as waiter:
            assert isinstance(waiter.acquire(), Busy)
            backend.release("video:1", holder.token)
            eventually(lambda: waiter.wait(0.5) or isinstance(waiter.acquire(), Grant))
        assert held(backend.get("video:1")).token == mine.token

    def test_a_waiter_that_gives_up_leaves_nothing_behind(self, backend: LockStore) -> None:
        holder = an_ask("video:1")
        backend.acquire(holder)
        with backend.waiter(an_ask("video:1")) as waiter:
            assert isinstance(waiter.acquire(), Busy)
            assert waiter.wait(0.01) is None
        assert held(backend.get("video:1")).waiting == 0
        backend.release("video:1", holder.token)
        granted(backend.acquire(an_ask("video:1")))

    def test_a_coroutine_waits_without_blocking_the_others(self, backend: LockStore) -> None:
        async def main() -> None:
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
            assert held(await backend.aget("video:1")).token == mine.token

        async_to_sync(main)()
