"""``Schedule``: whether a caller with a reservation makes its call, sleeps, or asks the store.

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
from django_tasklock.rates.sleepers import Sleepers, Slot
from django_tasklock.rates.stored import StoredLimit
from django_tasklock.types import monotonic

CONFIRM = 1.0  # seconds asleep after which the store is asked on waking
PATIENCE = 1.0  # seconds to wait for other callers that exchange missed slots
HALVED = 10.0  # seconds: a longer sleep is interrupted half-way
LOOK = 15.0  # seconds after which a sleep is interrupted, too, because other terms may apply
MOST = 10_000_000  # microseconds of leeway, at most
PATIENT = 2  # misses without leeway
NONE_LEFT = 0  # the edition of no limiter: one woke, and there was no slot for it


class Schedule:
    """Decides the next step of one reservation that has to wait. It sends no request itself."""

    def __init__(self, stored: StoredLimit, cost: int) -> None:
        self._stored = stored
        self._cost = cost
        self._left: Slot | None = None
        self._halfway = False
        self._short = False
        self._misses = 0

    def next(self, slot: Slot) -> float | None:
        """Return the seconds to sleep; 0: ask the store; ``None``: make the call."""
        left = slot.wait
        if self._asks_now(slot, left):
            return 0.0
        if left > 0:
            self._halfway = left > HALVED
            nap = min(left / 2, LOOK) if self._halfway else left
            self._short = self._halfway and nap == LOOK
            return nap
        return None

    def _asks_now(self, slot: Slot, left: float) -> bool:
        confirmed = self._short and left > 0 and self._stored.view.confirms(slot.booked, LOOK / 2)
        if self._halfway and not confirmed:
            return True
        if left > 0:
            return False
        return slot.booked.must_resume or self._was_missed(slot) or not self._stands(slot)

    def _stands(self, slot: Slot) -> bool:
        """Tell whether the limiter is certainly unchanged since the slot was booked."""
        known = self._stored.view.current(slot.booked, slot.sent)
        return monotonic() - slot.heard < CONFIRM if known is None else known

    def _was_missed(self, slot: Slot) -> bool:
        return slot.missed(self._stored.clock, self._stored.margin)

    def joins(self, slot: Slot | None) -> bool:
        """Tell whether its missed slot is exchanged together with those of other callers of this process."""
        return (
            slot is not None
            and not slot.booked.must_resume
            and not self._halfway
            and slot.wait <= 0
            and self._was_missed(slot)
        )

    @property
    def patience(self) -> float:
        """The seconds to wait for the answer to another caller."""
        return max(0.001, self._stored.margin / 2_000_000)

    @property
    def leeway(self) -> int:
        """The leeway of an exchange in microseconds: none for the first misses, then one margin, three, seven..."""
        return min(MOST, self._stored.margin * ((1 << min(max(0, self._misses - PATIENT), 16)) - 1))

    # Asleep

    @cached_property
    def _sleepers(self) -> Sleepers:
        """The sleepers that have its slot. They stay the same although the view may be forgotten meanwhile."""
        return self._stored.view.sleepers((self._stored, self._cost))

    def leave(self, slot: Slot | None) -> None:
        """Add the slot to those of the sleepers."""
        if slot is not None and not slot.booked.must_resume and not self._halfway:
            self._left = slot
            self._sleepers.put(slot)

    def arrive(self, slot: Slot | None) -> Slot | None:
        """Return the slot to go on with, after a sleep that began with ``slot``, or a wait for its turn to ask."""
        left, self._left = self._left, None
        if left is None and slot is not None and slot.booked.edition == NONE_LEFT:
            left = slot  # another thread had the slots of all, to exchange them, until the store answered: it has now
        if left is None:
            return slot
        # One that was refused has taken one more than it left: then the last has none, and books anew.
        return self._take() or left._replace(booked=left.booked._replace(edition=NONE_LEFT, must_resume=True))

    def reclaim(self, slot: Slot | None) -> Slot | None:
        """Return its own slot, or another one if a sleeper has taken it, to be cancelled or moved."""
        left, self._left = self._left, None
        return slot if left is None else self._sleepers.reclaim(left)

    def _take(self) -> Slot | None:
        return self._sleepers.take(self._stored.clock, self._stored.margin)

    # Asking

    def missed(self, own: Slot) -> list[Slot]:
        """Take the slots to be exchanged: its own, and the missed ones of other callers."""
        clock, margin = self._stored.clock, self._stored.margin
        return [own, *self._sleepers.take_missed(clock, margin, own.booked.edition)]

    def put_back(self, slots: Sequence[Slot]) -> None:
        """Return slots that were not exchanged to the sleepers."""
        for slot in slots:
            self._sleepers.put(slot)

    def exchanged(self, old: Sequence[Slot], sent: float, answers: Sequence[Booked | Refused]) -> Slot | None:
        """Return the slot to continue with after an exchange; ``None``: there is none in time."""
        stored, sleepers = self._stored, self._sleepers
        for slot, answer in zip(old, answers, strict=False):
            stored.view.hear(sent, answer)
            if isinstance(answer, Refused):
                continue
            sleepers.put(stored.note(answer, sent))
            if answer.slot > slot.booked.slot and answer.edition == slot.booked.edition:
                events.late(stored.terms.name, slot.late(stored.clock))
        self.put_back(old[len(answers) :])
        self._misses += 1
        return self._take()

    def answered(self, old: Slot, late: float, sent: float, answer: Booked | Refused) -> Slot | None:
        """Return the slot to continue with after an answer; ``None``: none in time. ``late``: that of ``old``."""
        self._stored.view.hear(sent, answer)
        if isinstance(answer, Refused):
            return self._take()  # the refusal is for the last slot, and this caller may have an earlier one
        if answer.slot > old.booked.slot and abs(answer.edition - old.booked.edition) <= 1 and late > 0:
            self._misses += 1
            events.late(self._stored.terms.name, late)
        self._halfway = False
        return self._stored.note(answer, sent)
