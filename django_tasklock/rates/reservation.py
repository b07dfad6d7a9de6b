"""``Reservation``: a time at a rate limit, booked once, slept for once, used or given back."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import NamedTuple, Protocol, Self

from django_tasklock.backends.contract.rates import Booked, Refused
from django_tasklock.context import asleep, sleep
from django_tasklock.exceptions import BackendUnavailable, TaskLockError
from django_tasklock.rates import events
from django_tasklock.rates.background import background_work, shield_booking
from django_tasklock.rates.schedule import PATIENCE, Schedule
from django_tasklock.rates.sleepers import Slot
from django_tasklock.rates.stored import StoredLimit
from django_tasklock.types import monotonic

AT_ONCE = 0.001  # seconds: no margin is shorter


class Limiter(Protocol):
    """The limiter of a reservation, as far as that needs it."""

    name: str

    @property
    def shared(self) -> Limiter | None:
        """Of a tenant: the limit that all tenants share."""

    def book(self, deadline: float, cost: int, spaced: bool = False) -> Reservation:
        """Book the first slot."""

    async def abook(self, deadline: float, cost: int) -> Reservation:
        """Do what ``book`` does, for coroutines."""

    def go_without(self, reservation: Reservation, error: BackendUnavailable) -> None:
        """Book it elsewhere, or raise, because its store could not be asked."""


class Part(NamedTuple):
    """One booking of a reservation token: a tenant's own, or the one at the limit that all tenants share."""

    slot: int
    edition: int
    cost: int

    def __str__(self) -> str:
        return f"{self.slot}:{self.edition}:{self.cost}"


def parts_of(token: str, name: str) -> list[Part]:
    """Read a reservation token of the limiter ``name``. Raises ``TaskLockError`` if it is none."""
    try:
        return [Part(*map(int, part.split(":"))) for part in token.split("+")]
    except (TypeError, ValueError):
        raise TaskLockError(f"{token!r:.80} is no reservation token", name=name) from None


class Reservation:
    """A time that ``limiter.reserve()`` has booked. ``with``, or ``use()``, waits for its turn.

    ``time`` says when that is, ``wait`` how many seconds are left; to sleep for so long is not to use it: one
    that had to wait and that nobody uses may go to whoever comes next. One whose turn it was at once counts as
    used unless it is cancelled. True in a boolean context.
    """

    # Most go at once: of what only others need nothing is stored.
    slot: Slot | None = None
    """The slot that it has; ``None``: let through without one, because the store could not be asked."""
    shared: Reservation | None = None
    """A tenant's reservation at the limit that all tenants share, once that is booked."""
    state = "booked"
    """``booked``, ``used``, ``cancelled``, or ``moved``: somebody else has its token."""
    spaced = False
    """True if, should it have to be exchanged, it is for a slot at some distance from the others."""
    missed = False
    """True if it was moved here, was missed on its way, and has another slot."""
    _schedule: Schedule | None = None
    _waited = False

    def __init__(self, limiter: Limiter, stored: StoredLimit, cost: int, deadline: float) -> None:
        self.limiter = limiter
        self.stored = stored
        self.cost = cost
        self.deadline = deadline
        """When the caller will not wait any longer, by this process's clock."""
        self.began = monotonic()

    def move_to(self, stored: StoredLimit) -> None:
        """Go on in another store, which knows nothing of what was missed in this one."""
        self.stored, self._schedule = stored, None

    @property
    def booked(self) -> bool:
        """False: let through without a slot, because the store could not be asked."""
        return self.slot is not None

    @property
    def wait(self) -> float:
        """Seconds until it is its turn."""
        if self.shared is not None:
            return self.shared.wait
        return 0.0 if self.slot is None else self.slot.wait

    @property
    def time(self) -> datetime:
        """When it is its turn, by the store's clock."""
        if self.shared is not None:
            return self.shared.time
        if self.slot is None:
            return datetime.now(UTC)
        return datetime.fromtimestamp(self.slot.booked.time / 1_000_000, UTC)

    @property
    def late(self) -> float:
        """Seconds since its turn by the store's clock; never too few. Negative: not yet."""
        return 0.0 if self.slot is None else self.slot.late(self.stored.clock)

    @property
    def longest(self) -> int:
        """Microseconds that are left for it."""
        return self.longest_at(monotonic())

    def longest_at(self, now: float) -> int:
        """Return ``longest`` at a time of this process's clock."""
        left = int((self.deadline - now) * 1_000_000)
        return min(self.stored.terms.horizon, left) if left > 0 else 0

    @property
    def schedule(self) -> Schedule:
        """The steps of its wait, once it has to wait."""
        if self._schedule is None:
            self._schedule = Schedule(self.stored, self.cost)
        return self._schedule

    def use(self) -> Self:
        """Sleep until it is its turn. Raises ``RateLimitExceeded`` if it was missed and there is no other in time.

        Whatever interrupts the sleep gives the slot back.
        """
        if self._is_free():
            self._done()
        else:
            self.use_within(float("inf"))
        return self

    def use_within(self, seconds: float) -> bool:
        """Do what ``use`` does if its turn is within so many seconds. False: it is not, and the slot is still
        booked.
        """
        try:
            if not self._sleep(monotonic() + seconds):
                return False
        except BaseException:
            self.cancel()
            raise
        self._done()
        return True

    def _is_free(self) -> bool:
        """Return whether it was its turn when it was booked, and that was just now: what most callers are told."""
        slot = self.slot
        if slot is None or slot.booked.wait > 0 or self.state != "booked" or self._waited:
            return False
        if self.limiter.shared is not None:
            return False
        late = monotonic() - slot.sent - slot.booked.wait / 1_000_000
        return late <= AT_ONCE or late * 1_000_000 <= self.stored.margin

    def _sleep(self, ends: float) -> bool:
        """Sleep until its turn, and that at the shared limit; False if that is later than ``ends``."""
        if self.shared is None:
            while (nap := self._nap(ends)) is not None:
                if nap < 0:
                    return False
                if nap:
                    self._leave()
                    sleep(nap, self.limiter.name)
                    self._arrive()
                elif self.schedule.joins(self.slot):
                    self._leave()
                    with self.stored.view.asking(PATIENCE):
                        self._arrive()
                        if self.schedule.joins(self.slot):
                            self._exchange()
                else:
                    with self.stored.view.asking(self.schedule.patience):
                        self._arrive()
                        if self._next() == 0:
                            self._ask()
            if self.limiter.shared is None:
                return True
            self.shared = self.limiter.shared.book(self.deadline, self.cost, self.spaced)
        if not self.shared._sleep(ends):
            return False
        self.shared._done()
        return True

    async def ause(self) -> Self:
        """Do what ``use`` does, for coroutines. A cancelled one gives the slot back."""
        if self._is_free():
            self._done()
            return self
        try:
            while (nap := self._next()) is not None:
                if nap:
                    self._leave()
                    await asleep(nap, self.limiter.name)
                    self._arrive()
                elif self.schedule.joins(self.slot):
                    self._leave()
                    async with self.stored.view.aasking(PATIENCE):
                        self._arrive()
                        if self.schedule.joins(self.slot):
                            await self._aexchange()
                else:
                    async with self.stored.view.aasking(self.schedule.patience):
                        self._arrive()
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

    def _nap(self, ends: float) -> float | None:
        """Return what ``_next`` does; negative if its turn is later than ``ends``."""
        return -1.0 if self.state == "booked" and monotonic() + self.wait > ends else self._next()

    def _next(self) -> float | None:
        """Return the seconds to sleep; 0: ask the store; ``None``: go."""
        slot = self._open()
        nap = None if slot is None else self.schedule.next(slot)
        self._waited = self._waited or bool(nap)
        return nap

    def _open(self) -> Slot | None:
        if self.state != "booked":
            raise TaskLockError(f"this reservation at {self.limiter.name!r} was {self.state} before")
        return self.slot

    def _leave(self) -> None:
        self.schedule.leave(self.slot)

    def _arrive(self) -> None:
        if self.state == "booked":
            self.slot = self.schedule.arrive(self.slot)

    # Asking. Until the answer there is nothing to give back: the slot may have been exchanged.

    def _exchange(self) -> None:
        old, sent = self._missed_slots(), monotonic()
        stored, slots = self.stored, [slot.booked.slot for slot in old]
        try:
            answers = stored.store.exchange(
                stored.terms, self.cost, slots, old[0].booked.edition, self.longest, self.schedule.leeway
            )
        except BaseException as error:
            self._not_exchanged(old, error)
        else:
            self._has(self.schedule.exchanged(old, sent, answers), answers[0])

    async def _aexchange(self) -> None:
        old, sent = self._missed_slots(), monotonic()
        stored, slots = self.stored, [slot.booked.slot for slot in old]
        try:
            answers = await stored.store.aexchange(
                stored.terms, self.cost, slots, old[0].booked.edition, self.longest, self.schedule.leeway
            )
        except BaseException as error:
            self._not_exchanged(old, error)
        else:
            self._has(self.schedule.exchanged(old, sent, answers), answers[0])

    def _missed_slots(self) -> list[Slot]:
        own, self.slot = self.slot, None
        assert own is not None
        return self.schedule.missed(own)

    def _not_exchanged(self, old: Sequence[Slot], error: BaseException) -> None:
        self.schedule.put_back(old[1:])
        if not isinstance(error, BackendUnavailable):
            self.slot = old[0]
            raise error
        self.limiter.go_without(self, error)

    def _ask(self) -> None:
        old, late, sent = self._asking()
        (store, terms, _), booked, leeway = self.stored, old.booked, self.schedule.leeway
        try:
            answer = store.resume(terms, self.cost, booked.slot, booked.edition, self.longest, self.spaced, leeway)
        except BackendUnavailable as error:
            self.limiter.go_without(self, error)
        else:
            self._has(self.schedule.answered(old, late, sent, answer), answer)

    async def _aask(self) -> None:
        old, late, sent = self._asking()
        (store, terms, _), booked, leeway = self.stored, old.booked, self.schedule.leeway
        question = store.aresume(terms, self.cost, booked.slot, booked.edition, self.longest, leeway)
        try:
            answer = await shield_booking(self.stored, self.cost, question)
        except BackendUnavailable as error:
            self.limiter.go_without(self, error)
        else:
            self._has(self.schedule.answered(old, late, sent, answer), answer)

    def _asking(self) -> tuple[Slot, float, float]:
        """Return the slot to ask about, how late that is, and when it is asked."""
        late, old = self.late, self.slot
        assert old is not None
        self.slot = None
        return old, late, monotonic()

    def _has(self, slot: Slot | None, answer: Booked | Refused) -> None:
        self.slot = slot
        if slot is None and isinstance(answer, Refused):
            raise self.refused(answer)

    def refused(self, answer: Refused) -> Exception:
        """End the reservation, since there is no slot in time; return the error to raise."""
        self.state = "cancelled"
        return events.refused(self.stored.in_force, answer.wait, self.longest)

    def _done(self) -> None:
        self.state = "used"
        events.granted(self.limiter.name, monotonic() - self.began if self._waited else 0.0, self.cost)

    def move(self) -> str:
        """Return the reservation token, text for another process: ``limiter.restore(text)``.

        This reservation has its slot no longer.
        """
        self._reclaim()
        slot = self._open()
        self.state = "moved"
        own = "" if slot is None else str(Part(slot.booked.slot, slot.booked.edition, self.cost))
        return own if self.shared is None or self.shared.state != "booked" else f"{own}+{self.shared.move()}"

    def cancel(self) -> bool:
        """Give the slot back: before its turn, or after it if the call was not made. False: there was nothing to."""
        if self.shared is not None:
            self.shared.cancel()
        slot = self._end()
        return slot is not None and self.stored.cancel(self.cost, slot.booked.slot, slot.booked.edition)

    async def acancel(self) -> bool:
        """Do what ``cancel`` does, for coroutines."""
        if self.shared is not None:
            await self.shared.acancel()
        slot = self._end()
        return slot is not None and await self.stored.acancel(self.cost, slot.booked.slot, slot.booked.edition)

    def _abandon(self) -> None:
        """Cancel it from elsewhere: a cancelled task had better not await its own clean-up."""
        if self.shared is not None:
            self.shared._abandon()
        slot = self._end()
        if slot is not None:
            stored, cost, booked = self.stored, self.cost, slot.booked
            background_work.submit(lambda: stored.cancel(cost, booked.slot, booked.edition))

    def _end(self) -> Slot | None:
        """End it; the slot to give back, if there is one."""
        self._reclaim()
        if self.state in ("cancelled", "moved"):
            return None
        self.state = "cancelled"
        return self.slot

    def _reclaim(self) -> None:
        if self._schedule is not None:
            self.slot = self._schedule.reclaim(self.slot)

    def settle(self, actual: int) -> bool:
        """Say that the call has cost ``actual`` units: the difference is given back, or charged to whoever comes next.

        False: it made no difference. Raises ``BackendUnavailable``, ``TaskLockError`` before its use.
        """
        slot = self._settling(actual)
        if self.shared is not None:
            self.shared.settle(actual)
        if slot is None:
            return False
        stored, booked = self.stored, slot.booked
        done = stored.store.settle(stored.terms, self.cost, booked.slot, booked.edition, actual)
        self.cost = actual
        return done

    async def asettle(self, actual: int) -> bool:
        """Do what ``settle`` does, for coroutines."""
        slot = self._settling(actual)
        if self.shared is not None:
            await self.shared.asettle(actual)
        if slot is None:
            return False
        stored, booked = self.stored, slot.booked
        done = await stored.store.asettle(stored.terms, self.cost, booked.slot, booked.edition, actual)
        self.cost = actual
        return done

    def _settling(self, actual: int) -> Slot | None:
        if type(actual) is not int or not 0 <= actual <= 1_000_000_000:
            raise TaskLockError(f"the actual cost must be a whole number, 0 or more, not {actual!r}")
        if self.state != "used":
            raise TaskLockError(f"a reservation is settled after its use; this one is {self.state}")
        return self.slot

    def __enter__(self) -> Self:
        return self.use()

    def __exit__(self, *how: object) -> None:
        """Do nothing: the call was made. If it was not, ``cancel()`` inside."""

    async def __aenter__(self) -> Self:
        return await self.ause()

    async def __aexit__(self, *how: object) -> None:
        """Do nothing: see ``__exit__``."""

    def __bool__(self) -> bool:
        return True
