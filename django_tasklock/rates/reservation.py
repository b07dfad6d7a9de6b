"""``Reservation``: a booked slot at a rate limit, to be used or cancelled."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import NamedTuple, Protocol, Self

from django_tasklock.backends.contract.rates import Booked, Refused
from django_tasklock.context import asleep, sleep
from django_tasklock.exceptions import BackendUnavailable, TaskLockError
from django_tasklock.rates import events
from django_tasklock.rates.background import background_work, shield_booking
from django_tasklock.rates.slot_wait import EXCHANGE_LOCK_TIMEOUT, SlotWait
from django_tasklock.rates.slots import Slot
from django_tasklock.rates.stored import StoredLimit
from django_tasklock.types import monotonic

LEAST_MARGIN = 0.001  # seconds: every margin is at least that, and a shorter wait counts as none


class Limiter(Protocol):
    """The limiter of a reservation."""

    name: str

    @property
    def shared(self) -> Limiter | None:
        """For a tenant, the limiter that all tenants share."""

    def book(self, deadline: float, cost: int, spaced: bool = False) -> Reservation:
        """Book the first free slot."""

    async def abook(self, deadline: float, cost: int) -> Reservation:
        """Do what ``book`` does, for coroutines."""

    def go_without(self, reservation: Reservation, error: BackendUnavailable) -> None:
        """Apply the policy for a store that is down: book elsewhere, or raise."""


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

    # Most calls are allowed at once, and need none of these attributes in the instance.
    slot: Slot | None = None
    """Its slot; ``None``: the call was allowed without one, because the store is down."""
    shared: Reservation | None = None
    """The reservation of a tenant at the limit that all tenants share, once it is booked."""
    state = "booked"
    """``booked``, ``used``, ``cancelled`` or ``moved`` (to another process, by its token)."""
    spaced = False
    """Whether another slot in exchange has to be at some distance from the others."""
    missed = False
    """Whether it was moved here, and has another slot because the first one was missed on the way."""
    _slot_wait: SlotWait | None = None
    _waited = False

    def __init__(self, limiter: Limiter, stored: StoredLimit, cost: int, deadline: float) -> None:
        self.limiter = limiter
        self.stored = stored
        self.cost = cost
        self.deadline = deadline
        """When the caller stops waiting, on this process's clock."""
        self.began = monotonic()

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
    def late(self) -> float:
        """The seconds since its slot on the store's clock, at most. Negative: the slot is still to come."""
        return 0.0 if self.slot is None else self.slot.late(self.stored.clock)

    @property
    def max_wait(self) -> int:
        """The microseconds that its slot may be away from now."""
        return self.max_wait_at(monotonic())

    def max_wait_at(self, now: float) -> int:
        """Return ``max_wait`` at ``now``, a time on this process's clock."""
        left = int((self.deadline - now) * 1_000_000)
        return min(self.stored.terms.horizon, left) if left > 0 else 0

    @property
    def slot_wait(self) -> SlotWait:
        """The schedule of its wait."""
        if self._slot_wait is None:
            self._slot_wait = SlotWait(self.stored, self.cost)
        return self._slot_wait

    def use(self) -> Self:
        """Sleep until its slot. Raises ``RateLimitExceeded`` if it was missed and there is no other slot in time.

        If the sleep is interrupted, the slot is returned.
        """
        if self._was_free_at_once():
            self._mark_used()
        else:
            self.use_within(float("inf"))
        return self

    def use_within(self, seconds: float) -> bool:
        """Do what ``use`` does if its slot is within ``seconds``. Return False if it is later; it stays booked then."""
        try:
            if not self._sleep(monotonic() + seconds):
                return False
        except BaseException:
            self.cancel()
            raise
        self._mark_used()
        return True

    def _was_free_at_once(self) -> bool:
        """Tell whether its slot was free at once, and was booked just now: the usual case."""
        slot = self.slot
        if slot is None or slot.booked.wait > 0 or self.state != "booked" or self._waited:
            return False
        if self.limiter.shared is not None:
            return False
        late = monotonic() - slot.sent - slot.booked.wait / 1_000_000
        return late <= LEAST_MARGIN or late * 1_000_000 <= self.stored.margin

    def _sleep(self, ends: float) -> bool:
        """Sleep until its slot, and that at the shared limit. Return False if it is later than ``ends``."""
        if self.shared is None:
            while (seconds := self._next_step_until(ends)) is not None:
                if seconds < 0:
                    return False
                if seconds:
                    self._put_in_pool()
                    sleep(seconds)
                    self._take_from_pool()
                elif self.slot_wait.needs_exchange(self.slot):
                    self._put_in_pool()
                    with self.stored.view.request_lock(EXCHANGE_LOCK_TIMEOUT):
                        self._take_from_pool()
                        if self.slot_wait.needs_exchange(self.slot):
                            self._exchange()
                else:
                    with self.stored.view.request_lock(self.slot_wait.resume_lock_timeout):
                        self._take_from_pool()
                        if self._next_step() == 0:
                            self._resume()
            if self.limiter.shared is None:
                return True
            self.shared = self.limiter.shared.book(self.deadline, self.cost, self.spaced)
        if not self.shared._sleep(ends):
            return False
        self.shared._mark_used()
        return True

    async def ause(self) -> Self:
        """Do what ``use`` does, for coroutines. If it is cancelled, the slot is returned."""
        if self._was_free_at_once():
            self._mark_used()
            return self
        try:
            while (seconds := self._next_step()) is not None:
                if seconds:
                    self._put_in_pool()
                    await asleep(seconds)
                    self._take_from_pool()
                elif self.slot_wait.needs_exchange(self.slot):
                    self._put_in_pool()
                    async with self.stored.view.arequest_lock(EXCHANGE_LOCK_TIMEOUT):
                        self._take_from_pool()
                        if self.slot_wait.needs_exchange(self.slot):
                            await self._aexchange()
                else:
                    async with self.stored.view.arequest_lock(self.slot_wait.resume_lock_timeout):
                        self._take_from_pool()
                        if self._next_step() == 0:
                            await self._aresume()
            if self.limiter.shared is not None:
                self.shared = await self.limiter.shared.abook(self.deadline, self.cost)
                await self.shared.ause()
        except Exception:
            await self.acancel()
            raise
        except BaseException:
            self._cancel_in_background()
            raise
        self._mark_used()
        return self

    def _next_step_until(self, ends: float) -> float | None:
        """Return like ``_next_step``, or a negative number if its slot is later than ``ends``."""
        return -1.0 if self.state == "booked" and monotonic() + self.wait > ends else self._next_step()

    def _next_step(self) -> float | None:
        """Return the seconds to sleep; 0: ask the store; ``None``: the call is allowed."""
        slot = self._require_booked()
        seconds = None if slot is None else self.slot_wait.next_step(slot)
        self._waited = self._waited or (seconds or 0) > LEAST_MARGIN
        return seconds

    def _require_booked(self) -> Slot | None:
        if self.state != "booked":
            raise TaskLockError(f"this reservation at {self.limiter.name!r} was {self.state} before")
        return self.slot

    def _put_in_pool(self) -> None:
        self.slot_wait.put_in_pool(self.slot)

    def _take_from_pool(self) -> None:
        if self.state == "booked":
            self.slot = self.slot_wait.take_from_pool(self.slot)

    # Requests. Until the answer comes there is no slot to return, because it may have been exchanged.

    def _exchange(self) -> None:
        old, sent = self._take_missed_slots(), monotonic()
        stored, slots = self.stored, [slot.booked.slot for slot in old]
        try:
            answers = stored.store.exchange(
                stored.terms, self.cost, slots, old[0].booked.edition, self.max_wait, self.slot_wait.leeway
            )
        except BaseException as error:
            self._on_exchange_error(old, error)
        else:
            self._set_slot(self.slot_wait.after_exchange(old, sent, answers), answers[0])

    async def _aexchange(self) -> None:
        old, sent = self._take_missed_slots(), monotonic()
        stored, slots = self.stored, [slot.booked.slot for slot in old]
        try:
            answers = await stored.store.aexchange(
                stored.terms, self.cost, slots, old[0].booked.edition, self.max_wait, self.slot_wait.leeway
            )
        except BaseException as error:
            self._on_exchange_error(old, error)
        else:
            self._set_slot(self.slot_wait.after_exchange(old, sent, answers), answers[0])

    def _take_missed_slots(self) -> list[Slot]:
        own, self.slot = self.slot, None
        assert own is not None
        return self.slot_wait.take_missed(own)

    def _on_exchange_error(self, old: Sequence[Slot], error: BaseException) -> None:
        self.slot_wait.return_to_pool(old[1:])
        if not isinstance(error, BackendUnavailable):
            self.slot = old[0]
            raise error
        self.limiter.go_without(self, error)

    def _resume(self) -> None:
        old, late, sent = self._begin_resume()
        (store, terms, _), booked, leeway = self.stored, old.booked, self.slot_wait.leeway
        try:
            answer = store.resume(terms, self.cost, booked.slot, booked.edition, self.max_wait, self.spaced, leeway)
        except BackendUnavailable as error:
            self.limiter.go_without(self, error)
        else:
            self._set_slot(self.slot_wait.after_resume(old, late, sent, answer), answer)

    async def _aresume(self) -> None:
        old, late, sent = self._begin_resume()
        (store, terms, _), booked, leeway = self.stored, old.booked, self.slot_wait.leeway
        request = store.aresume(terms, self.cost, booked.slot, booked.edition, self.max_wait, leeway)
        try:
            answer = await shield_booking(self.stored, self.cost, request)
        except BackendUnavailable as error:
            self.limiter.go_without(self, error)
        else:
            self._set_slot(self.slot_wait.after_resume(old, late, sent, answer), answer)

    def _begin_resume(self) -> tuple[Slot, float, float]:
        """Return the slot to ask about, how late it is, and the time of the request."""
        late, old = self.late, self.slot
        assert old is not None
        self.slot = None
        return old, late, monotonic()

    def _set_slot(self, slot: Slot | None, answer: Booked | Refused) -> None:
        self.slot = slot
        if slot is None and isinstance(answer, Refused):
            raise self.refuse(answer)

    def refuse(self, answer: Refused) -> Exception:
        """End the reservation, because there is no slot in time, and return the error to raise."""
        self.state = "cancelled"
        return events.refused(self.stored.terms, answer.wait, self.max_wait)

    def _mark_used(self) -> None:
        self.state = "used"
        events.granted(self.limiter.name, monotonic() - self.began if self._waited else 0.0, self.cost)

    def move(self) -> str:
        """Return the reservation token, with which another process calls ``limiter.restore(token)``.

        This reservation has no slot any more.
        """
        self._take_slot_back()
        slot = self._require_booked()
        self.state = "moved"
        own = "" if slot is None else str(TokenPart(slot.booked.slot, slot.booked.edition, self.cost))
        return own if self.shared is None or self.shared.state != "booked" else f"{own}+{self.shared.move()}"

    def cancel(self) -> bool:
        """Return the slot, before its time, or after it if the call was not made. False: there was none to return."""
        if self.shared is not None:
            self.shared.cancel()
        slot = self._take_slot_to_cancel()
        return slot is not None and self.stored.cancel(self.cost, slot.booked.slot, slot.booked.edition)

    async def acancel(self) -> bool:
        """Do what ``cancel`` does, for coroutines."""
        if self.shared is not None:
            await self.shared.acancel()
        slot = self._take_slot_to_cancel()
        return slot is not None and await self.stored.acancel(self.cost, slot.booked.slot, slot.booked.edition)

    def _cancel_in_background(self) -> None:
        """Cancel it in a background thread, because a cancelled task does not await its own clean-up."""
        if self.shared is not None:
            self.shared._cancel_in_background()
        slot = self._take_slot_to_cancel()
        if slot is not None:
            stored, cost, booked = self.stored, self.cost, slot.booked
            background_work.submit(lambda: stored.cancel(cost, booked.slot, booked.edition))

    def _take_slot_to_cancel(self) -> Slot | None:
        """End it, and return the slot to cancel, if there is one."""
        self._take_slot_back()
        if self.state in ("cancelled", "moved"):
            return None
        self.state = "cancelled"
        return self.slot

    def _take_slot_back(self) -> None:
        if self._slot_wait is not None:
            self.slot = self._slot_wait.take_back(self.slot)

    def settle(self, actual: int) -> bool:
        """Report that the call has cost ``actual`` units. The difference is returned, or charged to later calls.

        Return False if it made no difference. Raises ``BackendUnavailable``, and ``TaskLockError`` before its use.
        """
        slot = self._slot_to_settle(actual)
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
        slot = self._slot_to_settle(actual)
        if self.shared is not None:
            await self.shared.asettle(actual)
        if slot is None:
            return False
        stored, booked = self.stored, slot.booked
        done = await stored.store.asettle(stored.terms, self.cost, booked.slot, booked.edition, actual)
        self.cost = actual
        return done

    def _slot_to_settle(self, actual: int) -> Slot | None:
        if type(actual) is not int or not 0 <= actual <= 1_000_000_000:
            raise TaskLockError(f"the actual cost must be a whole number, 0 or more, not {actual!r}")
        if self.state != "used":
            raise TaskLockError(f"a reservation is settled after its use; this one is {self.state}")
        return self.slot

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
