"""``SlotWait``: whether a caller with a reservation makes its call, sleeps, or asks the store.

Usually a caller sleeps until its slot and makes its call without asking again. It asks again (``resume``)

* when it is later than the margin and no other caller of this process sleeps whose slot it could take. Then its slot is
exchanged for another one. After some misses the new slot has a leeway, which grows with each miss, so that no caller is
late for ever, and none makes its call too late; * when it is the only one of its process that waits: such a caller
always asks, so it can get the slot of a late one; * after a sleep of more than a second, because the limiter may have
been paused or reset meanwhile, unless another caller of this process has just asked; * in the middle of a long sleep,
because a slot that was returned may be earlier.

While a caller sleeps, other callers of its process may take its slot if they are in time for it.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

from django_tasklock.backends.contract.rates import Booked, Refused
from django_tasklock.rates import events
from django_tasklock.rates.slots import Slot, SlotPool
from django_tasklock.rates.stored import StoredLimit
from django_tasklock.types import monotonic

CONFIRM_AFTER = 1.0  # seconds asleep after which the store is asked on waking
EXCHANGE_LOCK_TIMEOUT = 1.0  # seconds to wait for other callers that exchange missed slots
HALVE_ABOVE = 10.0  # seconds: a longer sleep is interrupted half-way
LONGEST_SLEEP = 15.0  # seconds after which a sleep is interrupted, too, because other terms may apply
MAX_LEEWAY = 10_000_000  # microseconds of leeway, at most
MISSES_WITHOUT_LEEWAY = 2
NO_EDITION = 0  # the edition of no limiter: one woke, and there was no slot for it


class SlotWait:
    """The wait of one reservation for its slot: decides what is next. It sends no request itself."""

    def __init__(self, stored: StoredLimit, cost: int) -> None:
        self._stored = stored
        self._cost = cost
        self._pooled: Slot | None = None
        self._interrupted = False
        self._capped = False
        self._misses = 0

    def next_step(self, slot: Slot) -> float | None:
        """Return the seconds to sleep; 0: ask the store; ``None``: make the call."""
        left = slot.wait
        if self._must_resume(slot, left):
            return 0.0
        if left > 0:
            self._interrupted = left > HALVE_ABOVE
            seconds = min(left / 2, LONGEST_SLEEP) if self._interrupted else left
            self._capped = self._interrupted and seconds == LONGEST_SLEEP
            return seconds
        return None

    def _must_resume(self, slot: Slot, left: float) -> bool:
        confirmed = self._capped and left > 0 and self._stored.view.confirmed_within(slot.booked, LONGEST_SLEEP / 2)
        if self._interrupted and not confirmed:
            return True
        if left > 0:
            return False
        return slot.booked.must_resume or self._was_missed(slot) or not self._is_unchanged(slot)

    def _is_unchanged(self, slot: Slot) -> bool:
        """Tell whether the limiter is certainly unchanged since the slot was booked."""
        known = self._stored.view.is_unchanged(slot.booked, slot.sent)
        return monotonic() - slot.received < CONFIRM_AFTER if known is None else known

    def _was_missed(self, slot: Slot) -> bool:
        return slot.was_missed(self._stored.clock, self._stored.margin)

    def needs_exchange(self, slot: Slot | None) -> bool:
        """Tell whether its missed slot is exchanged together with those of other callers of this process."""
        return (
            slot is not None
            and not slot.booked.must_resume
            and not self._interrupted
            and slot.wait <= 0
            and self._was_missed(slot)
        )

    @property
    def resume_lock_timeout(self) -> float:
        """The seconds to wait for the answer to another caller."""
        return max(0.001, self._stored.margin / 2_000_000)

    @property
    def leeway(self) -> int:
        """The leeway of an exchange in microseconds: none for the first misses, then one margin, three, seven..."""
        return min(MAX_LEEWAY, self._stored.margin * ((1 << min(max(0, self._misses - MISSES_WITHOUT_LEEWAY), 16)) - 1))

    # Asleep

    @cached_property
    def _pool(self) -> SlotPool:
        """The pool that has its slot while it sleeps, always the same one: the view may be forgotten meanwhile."""
        return self._stored.view.slot_pool((self._stored, self._cost))

    def put_in_pool(self, slot: Slot | None) -> None:
        """Let other callers of this process take the slot while this one sleeps."""
        if slot is not None and not slot.booked.must_resume and not self._interrupted:
            self._pooled = slot
            self._pool.put(slot)

    def take_from_pool(self, slot: Slot | None) -> Slot | None:
        """Return the slot to go on with, after a sleep that began with ``slot``, or a wait for its turn to ask."""
        pooled, self._pooled = self._pooled, None
        if pooled is None and slot is not None and slot.booked.edition == NO_EDITION:
            pooled = slot  # another thread had the slots of all, to exchange them, until the store answered: it has now
        if pooled is None:
            return slot
        # One that was refused has taken one more than it left: then the last has none, and books anew.
        return self._take() or pooled._replace(booked=pooled.booked._replace(edition=NO_EDITION, must_resume=True))

    def take_back(self, slot: Slot | None) -> Slot | None:
        """Return its own slot, or another one if a sleeper has taken it, to be cancelled or moved."""
        pooled, self._pooled = self._pooled, None
        return slot if pooled is None else self._pool.take_own_or_last(pooled)

    def _take(self) -> Slot | None:
        return self._pool.take(self._stored.clock, self._stored.margin)

    # Asking

    def take_missed(self, own: Slot) -> list[Slot]:
        """Take the slots to be exchanged: its own, and the missed ones of other callers."""
        clock, margin = self._stored.clock, self._stored.margin
        return [own, *self._pool.take_missed(clock, margin, own.booked.edition)]

    def return_to_pool(self, slots: Sequence[Slot]) -> None:
        """Return slots that were not exchanged to the pool."""
        for slot in slots:
            self._pool.put(slot)

    def after_exchange(self, old: Sequence[Slot], sent: float, answers: Sequence[Booked | Refused]) -> Slot | None:
        """Return the slot to continue with after an exchange; ``None``: there is none in time."""
        stored, pool = self._stored, self._pool
        for slot, answer in zip(old, answers, strict=False):
            stored.view.record_answer(sent, answer)
            if isinstance(answer, Refused):
                continue
            pool.put(stored.record_booked(answer, sent))
            if answer.slot > slot.booked.slot and answer.edition == slot.booked.edition:
                events.late(stored.terms.name, slot.late(stored.clock))
        self.return_to_pool(old[len(answers) :])
        self._misses += 1
        return self._take()

    def after_resume(self, old: Slot, late: float, sent: float, answer: Booked | Refused) -> Slot | None:
        """Return the slot to continue with after an answer; ``None``: none in time. ``late``: that of ``old``."""
        self._stored.view.record_answer(sent, answer)
        if isinstance(answer, Refused):
            return self._take()  # the refusal is for the last slot, and this caller may have an earlier one
        if answer.slot > old.booked.slot and abs(answer.edition - old.booked.edition) <= 1 and late > 0:
            self._misses += 1
            events.late(self._stored.terms.name, late)
        self._interrupted = False
        return self._stored.record_booked(answer, sent)
