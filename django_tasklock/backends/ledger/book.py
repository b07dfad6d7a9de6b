"""The bookings of one rate limiter in plain Python: for the memory and database stores, and as the script's model.

The scripts ``lua/rate_*.lua`` have the same functions under the same names; a property test compares the two.

Why no window has more calls than the limit: slots are booked in order of time, none before the last one (``last``), and
each at least a window and a margin after the slot booked ``limit`` units earlier. Bookings before those ``limit`` units
do not count any more. They are set aside: the first ``x`` in the ring, which drops them when their window is over.
``n`` is the number of units of the others. Units are removed only if they were not used.

A caller that has to wait for more than a second has no slot of its own but one in the line. It resumes that shortly
before its time, and takes the first slot of the line from a quarter of a second ahead: so a caller that is late takes
the next slot, and each one behind it the one after, and no slot is lost while anybody comes in time. One whose own
slot is nearer takes that or a later one, or any that can still be used if its own has passed.
If nobody has used its own one, another one is put at the end of the line: so callers that come later are not moved.

A slot belongs to the caller that knows its edition: ``epoch`` and a serial number, a new one whenever a slot is given
back or taken from the line. So one that is given back twice is given back once, and one that was taken by another
caller is not used by its first one.

When the limit is raised, what is booked further ahead than anybody goes without asking again is dropped, and its
callers book again as they ask: those who sleep within some seconds, not in their former order.
"""

from __future__ import annotations

import bisect
import itertools
import math
import operator

from django_tasklock.backends.contract.rates import Rate, Terms
from django_tasklock.backends.ledger.state import Entry, State

FULL_SHARE = 1_000_000
"""The whole limit, as a share."""
TICK = 1000
"""Waits below this many microseconds count as none: slots are one apart, and some databases count milliseconds."""
OPENS_BEFORE = 1_000_000
"""A slot of the line can be taken from this many microseconds before its time."""
ASKS_WITHIN = 2_000_000
"""A caller asks again before it uses a slot that is further ahead than this many microseconds."""
SHORT_NOTICE = 250_000
"""A caller takes no slot of the line that is this close and not its own, if its own is later: it may be late itself."""
RECORD_TIME_EVERY = 1_000_000
"""Microseconds after which the store's time is recorded again (``idx``). A smaller step back is not noticed."""
MAX_EXAMINED = 16  # slots that one call examines, and unused ones that it removes
DAY = 86_400_000_000


class RateBook:
    """The bookings of one limiter, for one operation at one time of the store, in microseconds since 1970."""

    def __init__(self, state: State, terms: Terms, time: int) -> None:
        self.state = state
        self.meta = state.meta
        self.terms = terms
        self.time = time
        if "epoch" not in self.meta:
            self.begin_edition(time)
        behind = self.get("idx") - time
        if behind >= RECORD_TIME_EVERY:  # the store's clock was set back: the limiter's continues from where it was
            self.meta |= {key: self.get(key) - behind for key in ("off", "until", "changed")}
        if abs(behind) >= RECORD_TIME_EVERY:
            self.meta["idx"] = time

    def begin_edition(self, edition: int) -> None:
        """Begin an empty book."""
        for stored in (self.meta, self.state.rings, self.state.free, self.state.line):
            stored.clear()
        self.meta |= {"epoch": edition, "share": FULL_SHARE, "idx": self.time}

    def get(self, key: str) -> int:
        """Return a number of the book; 0 if it has none under this key."""
        return self.meta.get(key, 0)

    @property
    def edition(self) -> int:
        """The edition of the book: the time at which it was begun. Stored as ``epoch``."""
        return self.get("epoch")

    @property
    def newest_edition(self) -> int:
        """The edition of a slot that gets an owner now."""
        return self.edition + self.get("serial")

    @property
    def now(self) -> int:
        """The time of the limiter's clock, which is stopped until ``until``."""
        return max(self.time, self.get("until")) - self.get("off")

    def time_until(self, slot: int) -> int:
        """Return the time from now until a slot; negative if it has passed, never while the clock is stopped."""
        if self.get("until") > self.time:
            slot = max(slot, self.now)
        return slot + self.get("off") - self.time

    @property
    def expires(self) -> int:
        """When the state can be deleted, in microseconds since 1970."""
        ends = max(self.get("last"), self.now) + self.get("off") + self.terms.longest_window
        return ends if self.get("share") == FULL_SHARE else max(ends, self.time + DAY)

    # One rate

    def limit_of(self, rate: Rate) -> int:
        """Return the limit in force."""
        return max(1, rate.limit * self.get("share") // FULL_SHARE)

    def interval_of(self, rate: Rate) -> int:
        """Return the microseconds between two units if they are spread evenly."""
        return math.ceil((rate.window + rate.margin) / self.limit_of(rate))

    def ring_of(self, rate: Rate) -> list[Entry]:
        """Return the bookings of a rate."""
        return self.state.rings.setdefault(str(rate.window), [])

    def find(self, rate: Rate, slot: int) -> int:
        """Return the index of a booking in the ring of a rate; -1: it is not there."""
        ring = self.ring_of(rate)
        index = bisect.bisect_left(ring, [slot])
        return index if index < len(ring) and ring[index][0] == slot else -1

    def earliest_time(self, rate: Rate, units: int) -> int:
        """Return the first time at which a rate has room for ``units``."""
        self.count_again(rate)
        at, total, limit = 0, self.get(f"n:{rate.window}"), self.limit_of(rate)
        for slot, number, _ in itertools.islice(self.ring_of(rate), self.get(f"x:{rate.window}"), None):
            if total + units <= limit or total <= 0:
                break
            at, total = slot, total - number
        return at + rate.window + rate.margin if at else 0

    def count_again(self, rate: Rate) -> None:
        """Count bookings again that were set aside, if later ones were undone, or this caller has a greater limit."""
        ring, key = self.ring_of(rate), rate.window
        total, aside = self.get(f"n:{key}"), self.get(f"x:{key}")
        while aside and total < rate.limit:
            aside -= 1
            total += ring[aside][1]
        self.meta |= {f"n:{key}": total, f"x:{key}": aside}

    def add_to_rate(self, rate: Rate, slot: int, units: int) -> None:
        """Book ``units`` for a slot after all others, in one rate."""
        ring, key = self.ring_of(rate), rate.window
        ring.append([slot, units, self.get("serial")])
        total, aside = self.get(f"n:{key}") + units, self.get(f"x:{key}")
        while aside < len(ring) - 1 and total - ring[aside][1] >= rate.limit:
            total, aside = total - ring[aside][1], aside + 1
        while aside and ring[0][0] <= self.now - rate.window - rate.margin:
            ring.pop(0)
            aside -= 1
        self.meta |= {f"n:{key}": total, f"x:{key}": aside}

    def correct_units(self, rate: Rate, slot: int, more: int) -> None:
        """Correct the units of a booking in one rate. More units of one that is set aside are those of the newest."""
        ring, key, index = self.ring_of(rate), rate.window, self.find(rate, slot)
        if index < 0:
            return
        if index < self.get(f"x:{key}") and more > 0:
            index = len(ring) - 1
        more = max(more, -ring[index][1])
        ring[index][1] += more
        if index >= self.get(f"x:{key}"):
            self.meta[f"n:{key}"] = self.get(f"n:{key}") + more

    # All rates

    def edition_of(self, rate: Rate, slot: int) -> int:
        """Return the edition of a slot that is booked in a rate; 0: it is not."""
        index = self.find(rate, slot)
        return self.edition + self.ring_of(rate)[index][2] if index >= 0 else 0

    def is_owned(self, slot: int, edition: int) -> bool:
        """Return whether the caller with this edition has the slot, and some units of it."""
        owning = (rate for rate in self.terms.rates if self.edition_of(rate, slot) == edition)
        return any(self.ring_of(rate)[self.find(rate, slot)][1] > 0 for rate in owning)

    def change_owner(self, slot: int) -> bool:
        """Give a slot a new serial number. False: not all rates have the slot."""
        found = [(self.ring_of(rate), self.find(rate, slot)) for rate in self.terms.rates]
        if any(index < 0 for _, index in found):
            return False
        self.meta["serial"] = self.get("serial") + 1
        for ring, index in found:
            ring[index][2] = self.get("serial")
        return True

    def remove_units(self, slot: int, units: int) -> None:
        """Remove ``units`` of a booking that were not used."""
        for rate in self.terms.rates:
            self.correct_units(rate, slot, -units)

    def first_slot(self, units: int, spaced: bool = False) -> int:
        """Return the first slot for which all rates have room, after all others; ``spaced``: at some distance."""
        firsts = [(self.earliest_time(rate, units), rate) for rate in self.terms.rates]
        bound, strictest = max(firsts, key=lambda one: one[0])
        slot = max(self.now, bound, self.get("last") + 1)
        if spaced and slot > self.now + 2 * TICK:
            slot = max(slot, self.get("last") + units * self.interval_of(strictest))
        return slot

    def add(self, slot: int, units: int) -> int:
        """Book a slot after all others; return its edition."""
        self.meta["last"] = slot
        for rate in self.terms.rates:
            self.add_to_rate(rate, slot, units)
        return self.newest_edition

    def drop_ahead(self) -> None:
        """Drop what is booked for later than any caller goes without asking again: who has booked it books again."""
        since, last = self.now + ASKS_WITHIN, self.now
        for rate in self.terms.rates:
            ring, key = self.ring_of(rate), rate.window
            end, aside = bisect.bisect_right(ring, since, key=operator.itemgetter(0)), self.get(f"x:{key}")
            dropped = sum(units for _, units, _ in ring[max(end, aside) :])
            self.meta |= {f"n:{key}": self.get(f"n:{key}") - dropped, f"x:{key}": min(aside, end)}
            del ring[end:]
            self.count_again(rate)
            last = max([last, *(before for before, *_ in ring[-1:])])
        for stored in (self.state.free, self.state.line):
            del stored[bisect.bisect_right(stored, since, key=operator.itemgetter(0)) :]
        # Who had a slot does not own it if it is booked anew.
        self.meta |= {"last": last, "serial": self.get("serial") + 1}

    def is_raised(self) -> bool:
        """Return whether the last caller had a lower limit, or other windows."""
        before = Terms.from_text(self.terms.name, self.state.terms)
        limits = {} if before is None else {rate.window: rate.limit for rate in before.rates}
        return before is not None and any(rate.limit > limits.get(rate.window, 0) for rate in self.terms.rates)

    def follow_raise(self, units: int) -> None:
        """After a raise, let callers book again, if they would go sooner."""
        last = self.get("last")
        if last > self.now + ASKS_WITHIN and self.is_raised() and self.first_slot(units) == last + 1:
            self.drop_ahead()

    # Slots given back

    def find_free_slot(self, units: int) -> int:
        """Return the index of the first slot given back that has enough units, of the first few; -1: none."""
        free = self.state.free
        start = bisect.bisect_left(free, [self.now])
        for index in range(start, min(start + MAX_EXAMINED, len(free))):
            slot, number = free[index]
            if number >= units and all(self.find(rate, slot) >= 0 for rate in self.terms.rates):
                return index
        return -1

    def take_free_slot(self, index: int, units: int) -> int:
        """Book a slot that was given back; return its edition. Units that it has above these are not used."""
        slot, number = self.state.free.pop(index)
        self.remove_units(slot, number - units)
        return self.edition_of(self.terms.rates[0], slot)

    def give_back(self, slot: int, units: int) -> None:
        """Give back a future slot, so that the next caller can book it; undo the last ones, if nobody is behind."""
        free = self.state.free
        if not self.change_owner(slot):
            self.remove_units(slot, units)
            return
        bisect.insort(free, [slot, units])
        while free and free[-1][0] == self.get("last"):
            self.undo_last(*free.pop())

    def undo_last(self, slot: int, units: int) -> None:
        """Undo the last booking."""
        last = self.now
        for rate in self.terms.rates:
            ring, key = self.ring_of(rate), rate.window
            if ring and ring[-1][0] == slot:
                ring.pop()
                self.meta[f"n:{key}"] = self.get(f"n:{key}") - units
                self.count_again(rate)
            last = max([last, *(before for before, *_ in ring[-1:])])
        self.meta["last"] = last

    # The line

    def add_to_line(self, slot: int, units: int) -> None:
        """Put a slot in the line."""
        bisect.insort(self.state.line, [slot, units])

    def remove_from_line(self, slot: int, units: int) -> bool:
        """Remove a slot from the line. False: it is not there, because another caller has taken it."""
        try:
            self.state.line.remove([slot, units])
        except ValueError:
            return False
        return True

    def take_from_line(self, since: int, latest: int, units: int) -> int | None:
        """Take the first slot of the line from ``since`` to ``latest`` with as many units; ``None``: there is none."""
        line = self.state.line
        start = bisect.bisect_left(line, [since])
        for index, (slot, number) in enumerate(line[start : start + MAX_EXAMINED], start):
            if slot <= latest and number == units and self.change_owner(slot):
                del line[index]
                return slot
        return None

    def remove_unused(self) -> None:
        """Undo bookings that were never used: slots of the line or given back whose time passed without a caller."""
        for stored, at in ((self.state.line, self.now - self.terms.margin), (self.state.free, self.now)):
            for _ in range(MAX_EXAMINED):
                if not stored or stored[0][0] >= at:
                    break
                self.remove_units(*stored.pop(0))
