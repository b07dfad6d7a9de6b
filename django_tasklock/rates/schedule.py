"""``Schedule``: whether somebody who has a reservation goes, sleeps, or asks the store, between two sleeps.

The caller sleeps until its turn and goes, without asking again. It does ask again (``resume``)

* when it is later than the margin, and nobody else of this process sleeps whose slot it could take: then
  the slot is exchanged for another one, after some misses with the more leeway the more often it was
  late, so that nobody is late for ever, and nobody goes too late;
* when it stands in line: whoever is alone here asks in any case, and so can have the slot of one who is late;
* after a sleep of more than a second, because meanwhile the limiter may have been stopped or
  reset; whoever else of this process has asked within the last moments has asked for it, too;
* in the middle of a long sleep: a slot that was given back may be nearer.

Asleep, its slot is anybody's of this process who is in time for it.
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
PATIENCE = 1.0  # seconds to wait for others who exchange what was missed
HALVED = 10.0  # a longer sleep is interrupted half-way
LOOK = 15.0  # and the first one of a process after so long, too: other terms may be in force
MOST = 10_000_000  # microseconds of leeway
PATIENT = 2  # misses before there is any
NONE_LEFT = 0  # the edition of no limiter: one woke, and there was no slot for it


class Schedule:
    """The next step of one reservation that has to wait, from one step to the next. It asks nobody."""

    def __init__(self, stored: StoredLimit, cost: int) -> None:
        self._stored = stored
        self._cost = cost
        self._left: Slot | None = None
        self._halfway = False
        self._short = False
        self._misses = 0

    def next(self, slot: Slot) -> float | None:
        """Return the seconds to sleep; 0: ask the store; ``None``: go."""
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
        return slot.booked.asks or self._was_missed(slot) or not self._stands(slot)

    def _stands(self, slot: Slot) -> bool:
        """Return whether the limiter surely stands as it did when the slot was booked."""
        known = self._stored.view.current(slot.booked, slot.sent)
        return monotonic() - slot.heard < CONFIRM if known is None else known

    def _was_missed(self, slot: Slot) -> bool:
        return slot.missed(self._stored.clock, self._stored.margin)

    def joins(self, slot: Slot | None) -> bool:
        """Return whether what it has missed is exchanged together with what others of this process have missed."""
        return (
            slot is not None
            and not slot.booked.asks
            and not self._halfway
            and slot.wait <= 0
            and self._was_missed(slot)
        )

    @property
    def patience(self) -> float:
        """Seconds to wait for somebody else's answer."""
        return max(0.001, self._stored.margin / 2_000_000)

    @property
    def leeway(self) -> int:
        """Microseconds: none for the first misses, then one margin, three, seven..."""
        return min(MOST, self._stored.margin * ((1 << min(max(0, self._misses - PATIENT), 16)) - 1))

    # Asleep

    @cached_property
    def _sleepers(self) -> Sleepers:
        """Those among whom its slot is: the same when it wakes, although the view may be forgotten meanwhile."""
        return self._stored.view.sleepers((self._stored, self._cost))

    def leave(self, slot: Slot | None) -> None:
        """Leave the slot to whoever wakes before."""
        if slot is not None and not slot.booked.asks and not self._halfway:
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
        return self._take() or left._replace(booked=left.booked._replace(edition=NONE_LEFT, asks=True))

    def reclaim(self, slot: Slot | None) -> Slot | None:
        """Return its own slot, or another one of the sleepers if somebody has taken it; for whoever goes no further."""
        left, self._left = self._left, None
        return slot if left is None else self._sleepers.reclaim(left)

    def _take(self) -> Slot | None:
        return self._sleepers.take(self._stored.clock, self._stored.margin)

    # Asking

    def missed(self, own: Slot) -> list[Slot]:
        """Take the slots that are to be exchanged: its own, and those of others."""
        clock, margin = self._stored.clock, self._stored.margin
        return [own, *self._sleepers.take_missed(clock, margin, own.booked.edition)]

    def put_back(self, slots: Sequence[Slot]) -> None:
        """Leave missed what has not been exchanged."""
        for slot in slots:
            self._sleepers.put(slot)

    def exchanged(self, old: Sequence[Slot], sent: float, answers: Sequence[Booked | Refused]) -> Slot | None:
        """Return the slot to go on with, of those that came in exchange; ``None``: there is none in time."""
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
        """Return the slot to go on with; ``None``: there is none in time. ``late``: of ``old``, when it was asked."""
        self._stored.view.hear(sent, answer)
        if isinstance(answer, Refused):
            return self._take()  # what is refused is the last one's slot, and this may not be the last
        if answer.slot > old.booked.slot and abs(answer.edition - old.booked.edition) <= 1 and late > 0:
            self._misses += 1
            events.late(self._stored.terms.name, late)
        self._halfway = False
        return self._stored.note(answer, sent)
