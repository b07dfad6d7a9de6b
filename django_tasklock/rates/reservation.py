"""``Reservation``: a place at a rate limit, booked once, slept for once, used or given back."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from types import TracebackType
from typing import Self, TypeVar

from django_tasklock.backends.contract.rates import Booked
from django_tasklock.context import asleep, sleep
from django_tasklock.exceptions import BackendUnavailable, TaskLockError
from django_tasklock.rates import events
from django_tasklock.rates.background import returns
from django_tasklock.rates.events import watch_of
from django_tasklock.rates.schedule import PATIENCE, Desk, Wakening
from django_tasklock.types import monotonic

T = TypeVar("T")


async def kept(limiter_name: str, desk: Desk, cost: int, question: Awaitable[T]) -> T:
    """The answer to a question that may book. Cancelled: it is asked to its end, and the place given back."""
    asking = asyncio.ensure_future(question)

    def give_back(done: asyncio.Future[T]) -> None:
        if done.cancelled() or done.exception() is not None:
            return
        booked = done.result()
        if isinstance(booked, Booked):
            returns.give(lambda: unwanted(limiter_name, desk, cost, booked))

    try:
        return await asyncio.shield(asking)
    except asyncio.CancelledError:
        asking.add_done_callback(give_back)
        raise


def unwanted(name: str, desk: Desk, cost: int, booked: Booked) -> None:
    """Give back what nobody has taken."""
    try:
        returned = desk.store.cancel(desk.terms, cost, booked.slot, booked.epoch)
    except BackendUnavailable:
        returned = False
    events.cancelled(name, returned)


class Reservation(Wakening):
    """A place that ``limiter.reserve()`` has booked. ``with``, or ``use()``, waits for its turn.

    ``time`` says when that is, ``wait`` how many seconds are left. True in a boolean context. What
    is neither used nor cancelled counts as used.
    """

    def use(self) -> Self:
        """Sleep until it is its turn. Raises ``RateLimitExceeded`` if it was missed and there is no other in time.

        Whatever interrupts the sleep gives the place back.
        """
        if self._at_once():
            self._done()
        else:
            self.use_within(float("inf"))
        return self

    def use_within(self, seconds: float) -> bool:
        """``use`` if its turn is within so many seconds. False: it is not, and the place is still booked."""
        try:
            if not self._sleep(monotonic() + seconds):
                return False
        except BaseException:
            self.cancel()
            raise
        self._done()
        return True

    def _sleep(self, ends: float) -> bool:
        """Until its turn, and that at the shared limit; False if that is later than ``ends``."""
        if self.shared is None:
            while (nap := self._nap(ends)) is not None:
                if nap < 0:
                    return False
                if nap:
                    self._leave()
                    sleep(nap)
                    self._arrive()
                elif self._of_many:
                    self._leave()
                    with watch_of(self.limiter.name).asking(PATIENCE):
                        self._arrive()
                        if self._of_many:
                            self._exchange()
                else:
                    with watch_of(self.limiter.name).asking(self._patience):
                        if self._next() == 0:
                            self._ask()
            if self.limiter.shared is None:
                return True
            self.shared = self.limiter.shared.book(self.deadline, self.cost, self.spaced)
        if not self.shared._sleep(ends):
            return False
        self.shared._done()
        return True

    def _nap(self, ends: float) -> float | None:
        """``_next``; negative if its turn is later than ``ends``."""
        return -1.0 if self.state == "booked" and monotonic() + self.wait > ends else self._next()

    def _exchange(self) -> None:
        old, sent = self._missed_places(), monotonic()
        store, terms = self._desk
        slots, epoch = [place.booked.slot for place in old], old[0].booked.epoch
        try:
            answers = store.exchange(terms, self.cost, slots, epoch, self._longest(), self._leeway)
        except BackendUnavailable as error:
            self._put_back(old[1:])
            self._desk = self.limiter.without(self, error)
        except BaseException:
            self._put_back(old[1:])
            self._has(old[0])
            raise
        else:
            self._exchanged(old, sent, answers)

    async def _aexchange(self) -> None:
        old, sent = self._missed_places(), monotonic()
        store, terms = self._desk
        slots, epoch = [place.booked.slot for place in old], old[0].booked.epoch
        try:
            answers = await store.aexchange(terms, self.cost, slots, epoch, self._longest(), self._leeway)
        except BackendUnavailable as error:
            self._put_back(old[1:])
            self._desk = self.limiter.without(self, error)
        except BaseException:
            self._put_back(old[1:])
            self._has(old[0])
            raise
        else:
            self._exchanged(old, sent, answers)

    def _ask(self) -> None:
        asked = self._asking()
        store, terms = self._desk
        try:
            slot, epoch = asked[0].slot, asked[0].epoch
            answer = store.resume(terms, self.cost, slot, epoch, self._longest(), self.spaced, self._leeway)
        except BackendUnavailable as error:
            self._desk = self.limiter.without(self, error)
        else:
            self._answered(asked, answer)

    async def ause(self) -> Self:
        """``use`` for coroutines. A cancelled one gives the place back."""
        if self._at_once():
            self._done()
            return self
        try:
            while (nap := self._next()) is not None:
                if nap:
                    self._leave()
                    await asleep(nap)
                    self._arrive()
                elif self._of_many:
                    self._leave()
                    async with watch_of(self.limiter.name).aasking(PATIENCE):
                        self._arrive()
                        if self._of_many:
                            await self._aexchange()
                else:
                    async with watch_of(self.limiter.name).aasking(self._patience):
                        if self._next() == 0:
                            await self._aask()
            if self.limiter.shared is not None:
                self.shared = await self.limiter.shared.abook(self.deadline, self.cost)
                await self.shared.ause()
        except Exception:
            await self.acancel()
            raise
        except BaseException:
            self._abandon()
            raise
        self._done()
        return self

    async def _aask(self) -> None:
        asked = self._asking()
        store, terms = self._desk
        question = store.aresume(terms, self.cost, asked[0].slot, asked[0].epoch, self._longest(), self._leeway)
        try:
            answer = await kept(self.limiter.name, self._desk, self.cost, question)
        except BackendUnavailable as error:
            self._desk = self.limiter.without(self, error)
        else:
            self._answered(asked, answer)

    def cancel(self) -> bool:
        """Give the place back: before its turn, or after it if the call was not made. False: there was nothing to."""
        if self.shared is not None:
            self.shared.cancel()
        return not self._ended() and self._return()

    async def acancel(self) -> bool:
        """``cancel`` for coroutines."""
        if self.shared is not None:
            await self.shared.acancel()
        if self._ended() or self._booked is None:
            return False
        store, terms = self._desk
        try:
            returned = await store.acancel(terms, self.cost, self._booked.slot, self._booked.epoch)
        except BackendUnavailable:
            returned = False
        events.cancelled(self.limiter.name, returned)
        return returned

    def settle(self, actual: int) -> bool:
        """The call has cost ``actual`` units: the difference is given back, or charged to who comes next.

        False: it made no difference. Raises ``BackendUnavailable``, ``TaskLockError`` before its use.
        """
        booked = self._settling(actual)
        if self.shared is not None:
            self.shared.settle(actual)
        if booked is None:
            return False
        store, terms = self._desk
        done = store.settle(terms, self.cost, booked.slot, booked.epoch, actual)
        self.cost = actual
        return done

    async def asettle(self, actual: int) -> bool:
        """``settle`` for coroutines."""
        booked = self._settling(actual)
        if self.shared is not None:
            await self.shared.asettle(actual)
        if booked is None:
            return False
        store, terms = self._desk
        done = await store.asettle(terms, self.cost, booked.slot, booked.epoch, actual)
        self.cost = actual
        return done

    def _settling(self, actual: int) -> Booked | None:
        if type(actual) is not int or not 0 <= actual <= 1_000_000_000:
            raise TaskLockError(f"the actual cost must be a whole number, 0 or more, not {actual!r}")
        if self.state != "used":
            raise TaskLockError(f"a reservation is settled after its use; this one is {self.state}")
        return self._booked

    def __enter__(self) -> Self:
        return self.use()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Nothing: the call was made. If it was not, ``cancel()`` inside."""

    async def __aenter__(self) -> Self:
        return await self.ause()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Nothing: see ``__exit__``."""

    def __bool__(self) -> bool:
        return True
