"""The contract of a store whose releases wake waiters."""

from __future__ import annotations

import asyncio
import threading
from functools import partial

import pytest
from asgiref.sync import async_to_sync

from django_tasklock.backends.contract.stores import LockStore
from django_tasklock.types import Busy, Grant, Renewal, RenewalResult
from tests.contract.conformance.store import StoreContract, held, ttl_of
from tests.support.stores import an_ask, eventually, granted


class WakingContract(StoreContract):
    """A release hands the lock over to the first waiter that has not left."""

    # Handing over

    def test_waiters_get_the_lock_in_order_of_arrival(self, backend: LockStore) -> None:
        holder = an_ask("video:1")
        backend.acquire(holder)
        order: list[int] = []

        def wait_for_it(number: int) -> None:
            mine = an_ask("video:1")
            with backend.waiter(mine) as waiter:
                while isinstance(waiter.acquire(), Busy) and waiter.wait(10) is None:
                    pass
            order.append(number)
            backend.release("video:1", mine.token)

        def in_line(number: int) -> bool:
            return held(backend.get("video:1")).waiting == number

        threads = []
        for number in range(6):
            threads.append(threading.Thread(target=wait_for_it, args=(number,), daemon=True))
            threads[-1].start()
            eventually(partial(in_line, number + 1))
        backend.release("video:1", holder.token)
        for thread in threads:
            thread.join(20)
        assert order == [0, 1, 2, 3, 4, 5]

    def test_a_caller_that_does_not_wait_does_not_overtake_a_waiter(self, backend: LockStore) -> None:
        holder, mine = an_ask("video:1"), an_ask("video:1")
        backend.acquire(holder)
        with backend.waiter(mine) as waiter:
            waiter.acquire()
            backend.release("video:1", holder.token)
            busy = backend.acquire(an_ask("video:1"))
            assert isinstance(busy, Busy)
            assert held(busy.record).token == mine.token
            granted(waiter.wait(5))

    def test_a_lock_that_is_handed_over_has_its_whole_ttl_after_a_renewal(self, backend: LockStore) -> None:
        holder, mine = an_ask("video:1"), an_ask("video:1", ttl=60_000)
        before = granted(backend.acquire(holder))
        with backend.waiter(mine) as waiter:
            waiter.acquire()
            backend.release("video:1", holder.token)
            grant = granted(waiter.wait(5))
        assert grant.fence > before.fence
        assert held(backend.get("video:1")).fence == grant.fence
        assert backend.renew([Renewal("video:1", mine.token, 60_000)]) == [RenewalResult.RENEWED]
        assert ttl_of(backend.get("video:1")) > 50_000
        assert granted(backend.acquire(mine)).fence == grant.fence

    def test_a_removed_lock_is_handed_over_as_well(self, backend: LockStore) -> None:
        backend.acquire(an_ask("video:1"))
        mine = an_ask("video:1")
        with backend.waiter(mine) as waiter:
            waiter.acquire()
            assert backend.remove("video:1") is not None
            granted(waiter.wait(5))

    def test_a_waiter_that_leaves_with_the_lock_passes_it_on(self, backend: LockStore) -> None:
        holder, mine = an_ask("video:1"), an_ask("video:1")
        backend.acquire(holder)
        first = backend.waiter(an_ask("video:1"))
        first.acquire()
        with backend.waiter(mine) as second:
            second.acquire()
            backend.release("video:1", holder.token)
            assert held(backend.get("video:1")).token == first.request.token
            first.leave()
            granted(second.wait(5))

    def test_the_lock_is_free_after_the_last_waiter_has_left(self, backend: LockStore) -> None:
        holder = an_ask("video:1")
        backend.acquire(holder)
        with backend.waiter(an_ask("video:1")) as waiter:
            waiter.acquire()
            backend.release("video:1", holder.token)
        assert backend.get("video:1") is None

    def test_a_frozen_waiter_delays_the_next_one_only_briefly(self, backend: LockStore) -> None:
        holder, mine = an_ask("video:1"), an_ask("video:1")
        backend.acquire(holder)
        frozen = backend.waiter(an_ask("video:1", ttl=60_000))
        frozen.acquire()
        with backend.waiter(mine) as waiter:
            waiter.acquire()
            backend.release("video:1", holder.token)
            eventually(lambda: waiter.wait(0.5) or isinstance(waiter.acquire(), Grant))
        assert held(backend.get("video:1")).token == mine.token
        frozen.leave()
        assert held(backend.get("video:1")).token == mine.token

    def test_a_cancelled_coroutine_leaves_the_queue(self, backend: LockStore) -> None:
        async def main() -> None:
            holder, mine = an_ask("video:1"), an_ask("video:1")
            await backend.aacquire(holder)
            joined = asyncio.Event()

            async def wait_for_it() -> None:
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
