"""``Reservation``: a slot at a rate limit. It is booked, waited for, confirmed and used, or given back.

A caller that waits for more than a second sleeps until half a second before its slot and asks the store once more: only
then it learns of a pause, a reset, and a slot that has become free, and the store gives the slot of a caller that does
not ask to the next one. A caller that is later than the margin has missed its slot and asks for another one.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime
from typing import TYPE_CHECKING, NamedTuple, Self

from django_tasklock.backends.contract.rates import Booked, Refused
from django_tasklock.context import asleep, sleep
from django_tasklock.exceptions import BackendUnavailable, TaskLockError
from django_tasklock.rates import events
from django_tasklock.types import monotonic

if TYPE_CHECKING:
    from django_tasklock.rates.limiter import RateLimiter

EARLY = 0.5
"""Seconds before its slot at which a caller asks the store to confirm it."""
TRUSTED_FOR = 1.0
"""The longest wait, in seconds, after which a call is made without asking again."""
LONGEST_SLEEP = 15.0
"""Seconds after which a caller asks in any case: its slot may be another one, after a pause or a reset."""
NO_WAIT = 0.001
"""A wait that is shorter, in seconds, counts as none."""

MOST_MISSES = 32
"""The most times that a caller may be too late for its slot: each time nobody uses it."""

Step = float | Callable[[], object]
"""What a waiting caller does next: sleep so many seconds, or send a request."""


class Slot(NamedTuple):
    """A booked time at a limiter, with the times of request and answer on this process's clock."""

    booked: Booked
    sent: float
    received: float

    @property
    def wait(self) -> float:
        """The seconds until its time, at least."""
        return max(0.0, self.received + self.booked.wait / 1_000_000 - monotonic())

    @property
    def late(self) -> float:
        """The seconds since its time, at most; negative: it is still to come."""
        return monotonic() - self.sent - self.booked.wait / 1_000_000


class TokenPart(NamedTuple):
    """One slot of a reservation token: a tenant's own, or the one at the limit that all tenants share."""

    slot: int
    edition: int
    cost: int

    def __str__(self) -> str:
        return f"{self.slot}:{self.edition}:{self.cost}"


def parse_token(token: str, name: str) -> list[TokenPart]:
    """Parse a reservation token of the limiter ``name``. Raises ``TaskLockError`` if it is invalid."""
    try:
        parts = [TokenPart(*map(int, part.split(":"))) for part in token.split("+")]
    except (TypeError, ValueError):
        parts = []
    if not parts or any(part.cost < 1 for part in parts):
        raise TaskLockError(f"{token!r:.80} is no reservation token", name=name)
    return parts


class Reservation:
    """A slot that ``limiter.reserve()`` has booked. ``with`` or ``use()`` waits for it.

    ``time`` is its time, ``wait`` the remaining seconds. Sleeping for ``wait`` seconds does not use it: a slot that is
    not used may go to the next caller. A slot that was free at once counts as used unless it is cancelled. A
    reservation is true in a boolean context.
    """

    state = "booked"
    """``booked``, ``used``, ``cancelled`` or ``moved`` (to another process, by its token)."""
    slot: Slot | None = None
    """Its slot. ``None`` while the store is asked, and if the call is allowed without one, as the store is down."""
    shared: Reservation | None = None
    """The reservation of a tenant at the limit that all tenants share, once it is booked."""
    missed = False
    """Whether it was moved here, and has another slot because the first one was missed on the way."""
    _waited = False
    _misses = 0

    def __init__(self, limiter: RateLimiter, cost: int, deadline: float, spaced: bool = False) -> None:
        self.limiter = limiter
        self.cost = cost
        self.deadline = deadline
        """When the caller stops waiting, on this process's clock."""
        self.spaced = spaced
        """Whether its slot has to be at some distance from the others."""
        self._began = monotonic()
        self._lock = threading.Lock()  # an answer may come to a thread whose coroutine is being cancelled

    @property
    def booked(self) -> bool:
        """Whether it has a slot. It has none if the call was allowed because the store is down."""
        return self.slot is not None

    @property
    def wait(self) -> float:
        """The seconds until its slot."""
        if self.shared is not None:
            return self.shared.wait
        return 0.0 if self.slot is None else self.slot.wait

    @property
    def time(self) -> datetime:
        """The time of its slot, on the store's clock."""
        if self.shared is not None:
            return self.shared.time
        if self.slot is None:
            return datetime.now(UTC)
        return datetime.fromtimestamp(self.slot.booked.time / 1_000_000, UTC)

    @property
    def max_wait(self) -> int:
        """The microseconds that its slot may be away from now."""
        return min(self.limiter.terms.horizon, max(0, int((self.deadline - monotonic()) * 1_000_000)))

    # Booking

    def book(self) -> Self:
        """Book the first free slot. Raises ``RateLimitExceeded`` if that is too late, and ``BackendUnavailable``."""
        self._run([self._book])
        return self

    async def abook(self) -> Self:
        """Do what ``book`` does, for coroutines."""
        await self._arun([self._book])
        return self

    def restore(self, part: TokenPart) -> Self:
        """Take up the slot of another process, or another one if it was missed. Raises like ``book``."""

        def resume() -> None:
            booked = self._resume(part.slot, part.edition)
            self.missed = _is_later(booked, part)
            if self.missed:
                late = booked.time - booked.wait - booked.total_pause - part.slot
                events.late(self.limiter.name, max(0, late) / 1_000_000)

        self._run([resume])
        return self

    def keep(self, answer: Booked | Refused, sent: float) -> Booked:
        """Keep the slot of an answer. Raises ``RateLimitExceeded`` if it has none."""
        if isinstance(answer, Refused):
            self.state = "cancelled"
            raise events.refused(self.limiter.terms, answer.wait, self.max_wait)
        with self._lock:
            kept = self.state == "booked"
            if kept:
                self.slot = Slot(answer, sent, monotonic())
        if not kept:  # its coroutine was cancelled meanwhile
            self.limiter.cancel_slot(self.cost, answer.slot, answer.edition)
        return answer

    def _book(self) -> None:
        sent = monotonic()
        answer = self.limiter.store.reserve(self.limiter.terms, self.cost, self.max_wait, self.spaced)
        events.count_answer(self.limiter.name, answer)
        self.keep(answer, sent)

    def _resume(self, slot: int, edition: int) -> Booked:
        sent, limiter = monotonic(), self.limiter
        answer = limiter.store.resume(limiter.terms, self.cost, slot, edition, self.max_wait, self.spaced)
        return self.keep(answer, sent)

    def _confirm(self) -> None:
        with self._lock:
            old = self.slot
            if old is None or self.state != "booked":
                return
            if (late := old.late) > 0:
                self._misses += 1
            if self._misses > MOST_MISSES:
                raise events.always_late(self.limiter.terms, self._misses, late)
            self.slot = None  # it may be exchanged until the answer comes
        if _is_later(self._resume(old.booked.slot, old.booked.edition), old.booked) and late > 0:
            events.late(self.limiter.name, late)

    # Waiting and using

    def use(self) -> Self:
        """Sleep until its slot. Raises ``RateLimitExceeded`` if it was missed and there is no other slot in time.

        If the sleep is interrupted, the slot is returned.
        """
        self.use_within(float("inf"))
        return self

    async def ause(self) -> Self:
        """Do what ``use`` does, for coroutines. If it is cancelled, the slot is returned."""
        self._check_booked()
        await self._arun(self._steps(float("inf")))
        return self

    def use_within(self, seconds: float) -> bool:
        """Do what ``use`` does if its slot is within ``seconds``. Return False if it is later; it stays booked then."""
        self._check_booked()
        self._run(self._steps(monotonic() + seconds))
        return self.state == "used"

    def _steps(self, ends: float) -> Iterator[Step]:
        """Tell what to do next, until the call is made, or until the slot is found to be later than ``ends``."""
        while self.shared is None and (slot := self.slot) is not None:
            left = slot.wait
            if monotonic() + left > ends:
                return
            confirms = slot.booked.must_resume or left > TRUSTED_FOR
            if (nap := min(left - EARLY if confirms else left, LONGEST_SLEEP)) > 0:
                self._waited = self._waited or nap > NO_WAIT
                yield nap
            if not confirms and self._is_due(slot):
                break
            yield self._confirm
        if self.limiter.shared is not None:
            if self.shared is None:
                self.shared = Reservation(self.limiter.shared, self.cost, self.deadline, self.spaced)
                yield self.shared._book
            yield from self.shared._steps(ends)
            if self.shared.state != "used":
                return
        self.state = "used"
        events.granted(self.limiter.name, monotonic() - self._began if self._waited else 0.0, self.cost)

    def _is_due(self, slot: Slot) -> bool:
        """Tell whether the call may be made: the answer is recent, and it is not later than the margin allows."""
        return slot.late * 1_000_000 <= self.limiter.terms.margin and monotonic() - slot.sent <= 2 * TRUSTED_FOR

    def _run(self, steps: Iterable[Step]) -> None:
        try:
            for step in steps:
                if isinstance(step, float):
                    sleep(step)
                elif not self._goes_without():
                    try:
                        step()
                        self.limiter.outage.end()
                    except BackendUnavailable as error:
                        self._go_without(error)
        except BaseException:
            self.cancel()
            raise

    async def _arun(self, steps: Iterable[Step]) -> None:
        in_thread = self.limiter.store.in_thread
        try:
            for step in steps:
                if isinstance(step, float):
                    await asleep(step)
                elif not self._goes_without():
                    try:
                        await in_thread(step)
                        self.limiter.outage.end()
                    except BackendUnavailable as error:
                        self._go_without(error)
        except (Exception, asyncio.CancelledError):
            if self.state == "booked":
                await asyncio.shield(in_thread(self.cancel))
            raise

    def _goes_without(self) -> bool:
        error = self.limiter.outage.recent_error()
        if error is not None:
            self._go_without(error)
        return error is not None

    def _go_without(self, error: BackendUnavailable) -> None:
        """Let the call be made without a slot, or raise ``error``, by the limiter's policy."""
        (self.shared or self).slot = None
        self.limiter.go_without(error)

    def _check_booked(self) -> None:
        if self.state != "booked":
            raise TaskLockError(f"this reservation at {self.limiter.name!r} was {self.state} before")

    # Giving it away

    def move(self) -> str:
        """Return the reservation token, with which another process calls ``limiter.restore(token)``.

        This reservation has no slot any more.
        """
        self._check_booked()
        self.state, slot = "moved", self.slot
        own = "" if slot is None else str(TokenPart(slot.booked.slot, slot.booked.edition, self.cost))
        return own if self.shared is None or self.shared.state != "booked" else f"{own}+{self.shared.move()}"

    def cancel(self) -> bool:
        """Return the slot, before its time, or after it if the call was not made. False: there was none to return."""
        if self.shared is not None:
            self.shared.cancel()
        with self._lock:
            if self.state in ("cancelled", "moved"):
                return False
            self.state, slot = "cancelled", self.slot
        return slot is not None and self.limiter.cancel_slot(self.cost, slot.booked.slot, slot.booked.edition)

    async def acancel(self) -> bool:
        """Do what ``cancel`` does, for coroutines."""
        return await self.limiter.store.in_thread(self.cancel)

    def settle(self, actual: int) -> bool:
        """Report that the call has cost ``actual`` units. The difference is returned, or charged to later calls.

        Return False if it made no difference. Raises ``BackendUnavailable``, and ``TaskLockError`` before its use.
        """
        if type(actual) is not int or not 0 <= actual <= 1_000_000_000:
            raise TaskLockError(f"the actual cost must be a whole number, 0 or more, not {actual!r}")
        if self.state != "used":
            raise TaskLockError(f"a reservation is settled after its use; this one is {self.state}")
        if self.shared is not None:
            self.shared.settle(actual)
        if self.slot is None:
            return False
        limiter, booked = self.limiter, self.slot.booked
        done = limiter.store.settle(limiter.terms, self.cost, booked.slot, booked.edition, actual)
        self.cost = actual
        return done

    async def asettle(self, actual: int) -> bool:
        """Do what ``settle`` does, for coroutines."""
        return await self.limiter.store.in_thread(self.settle, actual)

    def __enter__(self) -> Self:
        return self.use()

    def __exit__(self, *how: object) -> None:
        """Do nothing, because the call was made. If it was not, call ``cancel()`` inside of the block."""

    async def __aenter__(self) -> Self:
        return await self.ause()

    async def __aexit__(self, *how: object) -> None:
        """Do nothing: see ``__exit__``."""

    def __bool__(self) -> bool:
        return True


def _is_later(booked: Booked, former: Booked | TokenPart) -> bool:
    """Tell whether a slot comes after the former one of the same caller: that was missed."""
    return booked.slot > former.slot
