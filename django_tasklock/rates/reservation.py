"""``Reservation``: a slot at a rate limit. It is booked, waited for, confirmed and used, or given back.

A caller that waits for more than a second sleeps until half a second before its slot and asks the store once more: only
then it learns of a pause, a reset, and a slot that has become free, and the store gives the slot of a caller that does
not ask to the next one. A caller that is later than the margin has missed its slot and asks for another one.

A call of a tenant has two slots: one of its own quota, and, booked when that is due, one at the limit that all share.
So has one that several limiters count. It is made when all of them are due at once: those that would pass while it
waits for another one are given back, and booked again when that one is due.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
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


Cost = int | Mapping[str, int]
"""The units of a call: the same at each limiter, or by the name of the limiter; 1 where it is not named."""


class Slot(NamedTuple):
    """A booked time at a limiter, with the times of request and answer on this process's clock."""

    limiter: RateLimiter
    cost: int
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

    @property
    def margin(self) -> float:
        """The seconds by which it may be used late."""
        return self.limiter.terms.margin / 1_000_000

    @property
    def is_due(self) -> bool:
        """Whether the call may be made: the answer is recent, and it is not later than the margin allows."""
        return self.late <= self.margin and monotonic() - self.sent <= 2 * TRUSTED_FOR

    def give_back(self) -> bool:
        """Return it to the store. False: it was used already, or the store is down."""
        limiter, booked = self.limiter, self.booked
        try:
            returned = limiter.store.cancel(limiter.terms, self.cost, booked.slot, booked.edition)
        except BackendUnavailable:
            returned = False
        events.cancelled(limiter.name, returned)
        return returned

    def __str__(self) -> str:
        return f"{self.booked.slot}:{self.booked.edition}:{self.cost}"


class Reservation:
    """A slot that ``limiter.reserve()`` has booked. ``with`` or ``use()`` waits for it.

    ``time`` is its time, ``wait`` the remaining seconds. Sleeping for ``wait`` seconds does not use it: a slot that is
    not used may go to the next caller. A slot that was free at once counts as used unless it is cancelled. A
    reservation is true in a boolean context.
    """

    state = "booked"
    """``booked``, ``used``, ``cancelled`` or ``moved`` (to another process, by its token)."""
    missed = 0
    """How often it was too late for its slot, and got another one."""

    def __init__(self, limiter: RateLimiter, cost: Cost, deadline: float, spaced: bool = False) -> None:
        self.limiter = limiter
        self._costs = [(one, cost_at(one, cost)) for one in limiter.booked_at]
        """The limiters that count it, in the order of their booking, and its units at each."""
        self.deadline = deadline
        """When the caller stops waiting, on this process's clock."""
        self.spaced = spaced
        """Whether its slots have to be at some distance from the others."""
        self.slots: list[Slot] = []
        """A slot at each limiter that it is booked at, the last one being waited for."""
        self._waited = dict.fromkeys((one.name for one in limiter.booked_at), 0.0)
        """The seconds that it has waited, by the name of the limiter."""
        self._without_store = False
        self._lock = threading.Lock()  # an answer may come to a thread whose coroutine is being cancelled

    @property
    def slot(self) -> Slot | None:
        """The slot that it waits for. ``None`` while the store is asked, and if the call is allowed without one."""
        return self.slots[-1] if self.slots else None

    @property
    def booked(self) -> bool:
        """Whether it has a slot. It has none if the call was allowed because the store is down."""
        return self.slot is not None

    @property
    def wait(self) -> float:
        """The seconds until its slot."""
        return 0.0 if self.slot is None else self.slot.wait

    @property
    def time(self) -> datetime:
        """The time of its slot, on the store's clock."""
        if self.slot is None:
            return datetime.now(UTC)
        return datetime.fromtimestamp(self.slot.booked.time / 1_000_000, UTC)

    @property
    def max_wait(self) -> int:
        """The microseconds that its slot may be away from now."""
        return min(self.limiter.terms.horizon, max(0, int((self.deadline - monotonic()) * 1_000_000)))

    def __repr__(self) -> str:
        return f"<Reservation {self.limiter.name!r} {self.state}>"

    # Booking

    def book(self) -> Self:
        """Book the first free slot. Raises ``RateLimitExceeded`` if that is too late, and ``BackendUnavailable``."""
        self._run([self._book])
        return self

    async def abook(self) -> Self:
        """Do what ``book`` does, for coroutines."""
        await self._arun([self._book])
        return self

    def keep(self, limiter: RateLimiter, cost: int, answer: Booked | Refused, sent: float) -> Slot:
        """Keep the slot of an answer, and return it. Raises ``RateLimitExceeded`` if it has none."""
        if isinstance(answer, Refused):
            raise events.refused(limiter.terms, answer.wait, self.max_wait)
        slot = Slot(limiter, cost, answer, sent, monotonic())
        with self._lock:
            if kept := self.state == "booked":
                self.slots.append(slot)
        if not kept:  # its coroutine was cancelled meanwhile
            slot.give_back()
        return slot

    def _book(self) -> None:
        [(limiter, cost), *_], sent = self._missing, monotonic()
        answer = limiter.store.reserve(limiter.terms, cost, self.max_wait, self.spaced)
        events.count_answer(limiter.name, answer)
        self.keep(limiter, cost, answer, sent)

    @property
    def _missing(self) -> list[tuple[RateLimiter, int]]:
        """The limiters, and costs, that it has no slot for."""
        found = {slot.limiter.name for slot in self.slots}
        return [(limiter, cost) for limiter, cost in self._costs if limiter.name not in found]

    def _give_back_others(self) -> None:
        """Give back all slots but the one that it waits for."""
        with self._lock:
            others, self.slots = self.slots[:-1], self.slots[-1:]
        for slot in reversed(others):
            slot.give_back()

    def _confirm(self) -> None:
        """Ask the store for the current state of the slot that it waits for: that one, or another one."""
        with self._lock:
            if self.state != "booked":
                return
            old = self.slots.pop()  # it may be another caller's until the answer comes
        sent, limiter = monotonic(), old.limiter
        answer = limiter.store.resume(
            limiter.terms, old.cost, old.booked.slot, old.booked.edition, self.max_wait, self.spaced
        )
        new = self.keep(limiter, old.cost, answer, sent).booked
        late = new.time - new.wait - new.total_pause - old.booked.slot  # by the store's clock
        if new.slot > old.booked.slot and late > 0:
            self.missed += 1
            events.late(limiter.name, late / 1_000_000)
            if self.missed > MOST_MISSES:
                raise events.always_late(limiter.terms, self.missed, late / 1_000_000)

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
        self._check_booked()
        while not self._without_store:
            self._check_booked()
            if not self.slots:
                yield self._book
                continue
            slot = self.slots[-1]
            left = slot.wait
            if any(-other.late < left - other.margin for other in self.slots[:-1]):
                yield self._give_back_others
                continue
            if monotonic() + left > ends:
                return
            confirms = slot.booked.must_resume or left > TRUSTED_FOR
            # A slow answer leaves open when its time is: it is confirmed before the first time that this may be.
            if (nap := min(-slot.late - EARLY if confirms else left, LONGEST_SLEEP)) > 0:
                began = monotonic()
                yield nap
                self._waited[slot.limiter.name] += monotonic() - began if nap > NO_WAIT else 0.0
            if confirms or not slot.is_due:
                yield self._confirm
            elif self._missing:
                yield self._book
            elif passed := next((one for one in self.slots if not one.is_due), None):
                self.slots.remove(passed)
                self.slots.append(passed)
            else:
                break
        self.state = "used"
        for limiter, cost in self._costs:
            events.granted(limiter.name, self._waited[limiter.name], cost)

    def _run(self, steps: Iterable[Step]) -> None:
        try:
            for step in steps:
                if isinstance(step, float):
                    sleep(step)
                else:
                    with self._unless_down():
                        self.limiter.outage.check()
                        step()
        except BaseException:
            self.cancel()
            raise

    async def _arun(self, steps: Iterable[Step]) -> None:
        in_thread = self.limiter.store.in_thread
        try:
            for step in steps:
                if isinstance(step, float):
                    await asleep(step)
                else:
                    with self._unless_down():
                        self.limiter.outage.check()
                        await in_thread(step)
        except (Exception, asyncio.CancelledError):
            if self.state == "booked":
                await asyncio.shield(in_thread(self.cancel))
            raise

    @contextmanager
    def _unless_down(self) -> Iterator[None]:
        """Ask the store. If that is down, let the call be made without a slot, or raise, by the limiter's policy."""
        try:
            yield
        except BackendUnavailable as error:
            self.limiter.go_without(error)
            self._without_store = True
            self.slots = [slot for slot in self.slots if slot.is_due and not slot.booked.must_resume]
        else:
            self.limiter.outage.end()

    def _check_booked(self) -> None:
        if self.state != "booked":
            raise TaskLockError(f"this reservation at {self.limiter.name!r} was {self.state} before")

    # Giving it away

    def move(self) -> str:
        """Return the reservation token, with which another process calls ``limiter.restore(token)``.

        This reservation has no slot any more.
        """
        self._check_booked()
        self._give_back_others()
        self.state = "moved"
        slots = {slot.limiter.name: slot for slot in self.slots}
        return "+".join(str(slots.get(one.name, f"0:0:{cost}")) for one, cost in self._costs) if slots else ""

    def carry(self, token: str) -> Self:
        """Have the slots of a reservation token, unconfirmed. Raises ``TaskLockError`` for any other text."""
        try:
            parts = [tuple(map(int, part.split(":"))) for part in token.split("+")]
            found = [(cost, Booked(slot, 0, edition, 0, 0)) for slot, edition, cost in parts]
        except ValueError:
            found = []
        if not found or any(cost < 1 for cost, _ in found):
            raise TaskLockError(f"{token!r:.80} is no reservation token", name=self.limiter.name)
        now = monotonic()
        carried = list(zip([limiter for limiter, _ in self._costs], found, strict=False))
        self._costs[: len(carried)] = [(limiter, cost) for limiter, (cost, _) in carried]
        self.slots = [Slot(limiter, *part, now, now) for limiter, part in carried if part[1].slot][:1]
        for limiter, cost in self._costs:
            limiter.check_cost(cost)
        return self

    def restore(self) -> Self:
        """Confirm the slot of another process. It is another one if that was missed. Raises like ``book``."""
        self._run([self._confirm if self.slots else self._book])
        return self

    def cancel(self) -> bool:
        """Return the slot, before its time, or after it if the call was not made. False: there was none to return."""
        with self._lock:
            if self.state in ("cancelled", "moved"):
                return False
            self.state, slots = "cancelled", self.slots[::-1]
        returned = [slot.give_back() for slot in slots]
        return any(returned)

    def settle(self, actual: Cost) -> bool:
        """Report that the call has cost ``actual`` units. The difference is returned, or charged to later calls.

        ``actual``: the same at each limiter, or by the names of those at which it differs. Return False if it made no
        difference. Raises ``BackendUnavailable``, and ``TaskLockError`` before its use.
        """
        check_names(self.limiter, actual)
        costs = dict(actual) if isinstance(actual, Mapping) else {slot.limiter.root: actual for slot in self.slots}
        for cost in costs.values():
            if type(cost) is not int or not 0 <= cost <= 1_000_000_000:
                raise TaskLockError(f"the actual cost must be a whole number, 0 or more, not {cost!r}")
        if self.state != "used":
            raise TaskLockError(f"a reservation is settled after its use; this one is {self.state}")
        done = False
        for index, (limiter, before, booked, *_) in enumerate(self.slots):
            cost = costs.get(limiter.root, before)
            done = limiter.store.settle(limiter.terms, before, booked.slot, booked.edition, cost) or done
            self.slots[index] = self.slots[index]._replace(cost=cost)
        return done

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


_current: ContextVar[Reservation | None] = ContextVar("tasklock_current_reservation", default=None)


def current_reservation() -> Reservation | None:
    """Return the reservation of the innermost rate-limited call that runs here, to settle it; ``None`` outside of one.

    It is that of this thread or asyncio task, as ``current_lock()`` is.
    """
    return _current.get()


@contextmanager
def as_current(reservation: Reservation) -> Iterator[None]:
    """Have this reservation be the current one."""
    before = _current.set(reservation)
    try:
        yield
    finally:
        _current.reset(before)


def cost_at(limiter: RateLimiter, cost: Cost) -> int:
    """Return the units of a call at one limiter."""
    return cost.get(limiter.root, 1) if isinstance(cost, Mapping) else cost


def check_names(limiter: RateLimiter, cost: Cost) -> None:
    """Raise ``TaskLockError`` if ``cost`` names a limiter that does not count the calls of ``limiter``."""
    known = dict.fromkeys(one.root for one in limiter.booked_at)
    for name in cost if isinstance(cost, Mapping) else ():
        if name not in known:
            raise TaskLockError(
                f"the cost names {name!r:.80}; the limits of this call are {', '.join(map(repr, known))}",
                name=limiter.name,
            )
