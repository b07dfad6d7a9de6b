"""Leases of several locks: the operations of a holder, on all of its locks as if they were one.

A waiter stands in the queue of one lock and holds none of the others meanwhile, so waiters cannot deadlock.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from django_tasklock.backends.contract.leases import LeaseStore, Waiter
from django_tasklock.names import each_of
from django_tasklock.types import AcquireRequest, Busy, Grant, Record, Released, Renewal, RenewalResult

if TYPE_CHECKING:
    from django_tasklock.backends.contract.locks import LockStore

CHUNK = 100  # leases that a store renews in one request
MAX_ATTEMPTS = 8  # in a row, each of which found another lock busy; then the waiter sleeps for a moment


class Several(LeaseStore):
    """The locks of a store, addressed by several names at once (``names.Names``)."""

    def __init__(self, store: LockStore) -> None:
        self.store = store
        self.wakes = store.wakes

    def acquire(self, request: AcquireRequest) -> Grant | Busy:
        return self.store.acquire_all(each_of(request.name), request)

    def release(self, name: str, token: str) -> Released:
        return self.store.release_all(each_of(name), token)

    def extend(self, name: str, token: str, ttl: int, hold: int) -> bool:
        return self.store.extend_all(each_of(name), token, ttl, hold)

    def renew(self, batch: Sequence[Renewal]) -> list[RenewalResult]:
        each = [item._replace(name=name) for item in batch for name in each_of(item.name)]
        found: list[RenewalResult] = []
        for start in range(0, len(each), CHUNK):
            found += self.store.renew(each[start : start + CHUNK])
        results = iter(found)
        return [_worst([next(results) for _ in each_of(item.name)]) for item in batch]

    def get_held(self, name: str, token: str) -> Record | None:
        return _decisive(self.store.get_all(each_of(name)), token)

    def waiter(self, request: AcquireRequest) -> Waiter:
        return SeveralWaiter(self, request) if self.wakes else Waiter(self, request)

    def close_idle(self) -> None:
        self.store.close_idle()

    async def aacquire(self, request: AcquireRequest) -> Grant | Busy:
        return await self.store.aacquire_all(each_of(request.name), request)

    async def arelease(self, name: str, token: str) -> Released:
        return await self.store.arelease_all(each_of(name), token)

    async def aextend(self, name: str, token: str, ttl: int, hold: int) -> bool:
        return await self.store.aextend_all(each_of(name), token, ttl, hold)

    async def aget_held(self, name: str, token: str) -> Record | None:
        return _decisive(await self.store.aget_all(each_of(name)), token)


class SeveralWaiter(Waiter):
    """Waits in the queue of a lock that is busy until that is handed over, and then tries to acquire all of them.

    If it finds another one busy then, it waits for that one next, and the lock it was handed goes to the next waiter.
    """

    backend: Several

    def __init__(self, backend: Several, request: AcquireRequest) -> None:
        super().__init__(backend, request)
        self._waiter: Waiter | None = None
        """The waiter for the lock that was busy."""

    def acquire(self) -> Grant | Busy:
        busy = Busy(None)
        for _ in range(MAX_ATTEMPTS):
            if self._waiter is None:
                answer = self.backend.acquire(self.request)
                if isinstance(answer, Grant):
                    return answer
                busy, self._waiter = answer, self._waiter_for(answer.name)
            answer = self._waiter.acquire()
            if isinstance(answer, Busy):
                return answer._replace(name=self._waiter.request.name)
            self._waiter.leave()  # it holds that lock now
            self._waiter = None
        self.backend.release(self.request.name, self.request.token)
        return busy

    def wait(self, seconds: float) -> Grant | None:
        if self._waiter is None:
            return super().wait(seconds)
        if self._waiter.wait(seconds) is not None:
            self._waiter.leave()
            self._waiter = None
        return None

    def leave(self) -> None:
        if self._waiter is not None:
            self._waiter.leave()
            self._waiter = None

    async def aacquire(self) -> Grant | Busy:
        busy = Busy(None)
        for _ in range(MAX_ATTEMPTS):
            if self._waiter is None:
                answer = await self.backend.aacquire(self.request)
                if isinstance(answer, Grant):
                    return answer
                busy, self._waiter = answer, self._waiter_for(answer.name)
            answer = await self._waiter.aacquire()
            if isinstance(answer, Busy):
                return answer._replace(name=self._waiter.request.name)
            await self._waiter.aleave()
            self._waiter = None
        await self.backend.arelease(self.request.name, self.request.token)
        return busy

    async def await_(self, seconds: float) -> Grant | None:
        if self._waiter is None:
            return await super().await_(seconds)
        if await self._waiter.await_(seconds) is not None:
            await self._waiter.aleave()
            self._waiter = None
        return None

    async def aleave(self) -> None:
        if self._waiter is not None:
            await self._waiter.aleave()
            self._waiter = None

    def _waiter_for(self, name: str) -> Waiter:
        return self.backend.store.waiter(self.request._replace(name=name))


def first_failed(outcomes: Sequence[Released]) -> Released:
    """Return the outcome of the first lock that was not released; ``RELEASED`` if all were."""
    return next((outcome for outcome in outcomes if not outcome), Released.RELEASED)


def _worst(found: Sequence[RenewalResult]) -> RenewalResult:
    for result in (RenewalResult.LOST, RenewalResult.UNKNOWN, RenewalResult.ASKED):
        if result in found:
            return result
    return RenewalResult.RENEWED


def _decisive(records: Sequence[Record | None], token: str) -> Record | None:
    """Return the record of a lock that is lost, else of one whose release is requested, else of any."""
    for record in records:
        if record is None or record.token != token:
            return record
    return next((record for record in records if record is not None and record.asked), records[0])
