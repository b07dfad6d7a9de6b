"""A lease of several locks at once: the verbs of a holder, over all of them, as if they were one.

Whoever waits stands in the queue of one of them, and has none meanwhile: so nobody waits for somebody who waits.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from django_tasklock.backends.contract.leases import LeaseStore, Waiter
from django_tasklock.names import each_of
from django_tasklock.types import AcquireRequest, Busy, Grant, Record, Released, Renewal, RenewalResult

if TYPE_CHECKING:
    from django_tasklock.backends.contract.locks import LockStore

CHUNK = 100  # leases that a store renews by one request
TURNS = 8  # tries in a row, each of which found another one busy: then it sleeps for a moment
NOBODY = Busy(None)


class Several(LeaseStore):
    """The locks of a store, by names that are several (``names.Names``)."""

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
        answers = iter(found)
        return [_worst([next(answers) for _ in each_of(item.name)]) for item in batch]

    def mine(self, name: str, token: str) -> Record | None:
        return _one(self.store.get_all(each_of(name)), token)

    def waiter(self, request: AcquireRequest) -> Waiter:
        return SeveralWaiter(self, request) if self.wakes else Waiter(self, request)

    def close_idle(self) -> None:
        self.store.close_idle()

    def note_wait(self, name: str, token: str, what: str, ms: int) -> None:
        for one in each_of(name):
            self.store.note_wait(one, token, what, ms)

    async def anote_wait(self, name: str, token: str, what: str, ms: int) -> None:
        for one in each_of(name):
            await self.store.anote_wait(one, token, what, ms)

    async def aacquire(self, request: AcquireRequest) -> Grant | Busy:
        return await self.store.aacquire_all(each_of(request.name), request)

    async def arelease(self, name: str, token: str) -> Released:
        return await self.store.arelease_all(each_of(name), token)

    async def aextend(self, name: str, token: str, ttl: int, hold: int) -> bool:
        return await self.store.aextend_all(each_of(name), token, ttl, hold)

    async def amine(self, name: str, token: str) -> Record | None:
        return _one(await self.store.aget_all(each_of(name)), token)


class SeveralWaiter(Waiter):
    """Waits in the queue of the one that is busy, and has it handed over; then asks for all, with that one in hand.

    What it finds busy then is the one that it waits for next, and what it was handed goes to the next in line.
    """

    backend: Several

    def __init__(self, backend: Several, request: AcquireRequest) -> None:
        super().__init__(backend, request)
        self._place: Waiter | None = None

    def acquire(self) -> Grant | Busy:
        asking, answer = self._asking(), NOBODY
        for _ in range(TURNS):
            if self._place is None:
                told = self.backend.acquire(asking)
                if isinstance(told, Grant):
                    return told
                answer, self._place = told, self._place_for(told.name)
            found = self._place.acquire()
            if isinstance(found, Busy):
                return found._replace(name=self._place.request.name)
            self._place.leave()  # with that one in hand
            self._place = None
        self.backend.release(self.request.name, self.request.token)
        return answer

    def wait(self, seconds: float) -> Grant | None:
        if self._place is None:
            return super().wait(seconds)
        if self._place.wait(seconds) is not None:
            self._place.leave()
            self._place = None
        return None

    def look_last(self) -> None:
        super().look_last()
        if self._place is not None:
            self._place.look_last()

    def leave(self) -> None:
        if self._place is not None:
            self._place.leave()
            self._place = None

    async def aacquire(self) -> Grant | Busy:
        asking, answer = self._asking(), NOBODY
        for _ in range(TURNS):
            if self._place is None:
                told = await self.backend.aacquire(asking)
                if isinstance(told, Grant):
                    return told
                answer, self._place = told, self._place_for(told.name)
            found = await self._place.aacquire()
            if isinstance(found, Busy):
                return found._replace(name=self._place.request.name)
            await self._place.aleave()
            self._place = None
        await self.backend.arelease(self.request.name, self.request.token)
        return answer

    async def await_(self, seconds: float) -> Grant | None:
        if self._place is None:
            return await super().await_(seconds)
        if await self._place.await_(seconds) is not None:
            await self._place.aleave()
            self._place = None
        return None

    async def aleave(self) -> None:
        if self._place is not None:
            await self._place.aleave()
            self._place = None

    def _place_for(self, name: str) -> Waiter:
        return self.backend.store.waiter(self.request._replace(name=name, on_busy=self._at_last))


def first_failed(outcomes: Sequence[Released]) -> Released:
    """Return what was found of the first that was not released; *released* if all were."""
    return next((outcome for outcome in outcomes if not outcome), Released.RELEASED)


def _worst(found: Sequence[RenewalResult]) -> RenewalResult:
    for result in (RenewalResult.LOST, RenewalResult.UNKNOWN, RenewalResult.ASKED):
        if result in found:
            return result
    return RenewalResult.RENEWED


def _one(records: Sequence[Record | None], token: str) -> Record | None:
    """Return the one that is lost, else one that its holder is asked for, else any."""
    for record in records:
        if record is None or record.token != token:
            return record
    return next((record for record in records if record is not None and record.asked), records[0])
