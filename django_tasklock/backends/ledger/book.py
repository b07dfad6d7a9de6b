"""The bookings of one rate limiter in plain Python: for the memory and database stores, and as the scripts' model.

``lua/_rates.lua`` has the same functions under the same names; a property test compares the two.

Why no window has more calls than the limit: slots are booked in order of time, none before the last one (``last``), and
each at least a window and a margin after the slot booked ``limit`` units earlier. Bookings before those ``limit`` units
do not count any more. They are set aside (``x``) in the ring until their window is over; then they are dropped, and
only the time of the newest dropped one is stored (``z``). Otherwise only bookings that were not used are removed.

No two bookings have the same number, so that a slot which is given back twice is given back once: slots are 16
microseconds apart, and a slot that was given back gets the next number in between when it is booked again. Numbers that
were given back are stored (``gone``) until their window is over.

A caller that will resume its slot before using it, and has to wait for more than a second, has no slot of its own but
one in the line: when it resumes, it takes the first slot of the line that can still be used. So a caller that is late
takes the next slot, and each one behind it the one after, instead of the late caller going to the end. Its edition is
that of the book plus one, which older versions of this package treat as another edition.
"""

from __future__ import annotations

import bisect
import itertools
import math

from django_tasklock.backends.contract.rates import Rate, Terms
from django_tasklock.backends.ledger.state import Entry, State

FULL_SHARE = 1_000_000
"""The whole limit, as a share."""
GRID = 16
"""Microseconds between two slots: room for the numbers under which a slot is booked again."""
TICK = 1000
"""Waits below this many microseconds count as none: slots are on a grid, and some databases count milliseconds."""
MAX_LEEWAY = 10_000_000
"""The greatest leeway: microseconds by which a slot may be used later than its time."""
OPENS_BEFORE = 1_000_000
"""A slot of the line can be taken from this many microseconds before its time."""
RECORD_TIME_EVERY = 1_000_000
"""Microseconds after which the store's time is recorded again (``idx``). A smaller step back is not noticed."""
MAX_EXAMINED = 16  # slots given back that one call examines
MAX_REMOVED = 64  # slots given back that one call removes
MAX_ASIDE = 10_000  # the most bookings that are set aside, although they do not count: until their window is over
MONTH, DAY = 30 * 86_400_000_000, 86_400_000_000


class RateBook:
    """The bookings of one limiter, for one operation at one time of the store, in microseconds since 1970."""

    def __init__(self, state: State, terms: Terms, time: int) -> None:
        self.state = state
        self.meta = state.meta
        self.terms = terms
        self.time = time
        self.rebuilt = False
        if "epoch" not in self.meta:
            self.begin_edition(time, terms.cold_wait)
        if self.get("hz") < terms.horizon:
            self.meta["hz"] = terms.horizon
        behind = self.get("idx") - time
        if behind >= RECORD_TIME_EVERY:  # the store's clock was set back: the limiter's continues from where it was
            self.meta |= {key: self.get(key) - behind for key in ("off", "until", "changed")}
        far = self.get("hz") + terms.longest_window + MAX_LEEWAY
        # An older version, which does not notice a step back, has booked meanwhile.
        if self.get("last") - self.now > far or self.get("until") - time > far:
            self.begin_edition(max(self.edition + 2, time), wait_first=True)
            self.rebuilt = True
        if abs(time - self.get("idx")) >= RECORD_TIME_EVERY:
            self.meta["idx"] = time

    def begin_edition(self, edition: int, wait_first: bool) -> None:
        """Begin an empty book. ``wait_first``: book nothing for the longest window, because its usage is unknown."""
        self.meta.clear()
        self.meta.update(epoch=edition, share=FULL_SHARE, hz=self.terms.horizon)
        self.state.rings.clear()
        self.state.free.clear()
        self.state.gone.clear()
        self.state.line.clear()
        if wait_first:
            self.meta["from"] = self.time + self.terms.longest_window

    def get(self, key: str) -> int:
        """Return a number of the book; 0 if it has none under this key."""
        return self.meta.get(key, 0)

    @property
    def edition(self) -> int:
        """The edition of the book: the time at which it was begun. Stored as ``epoch``."""
        return self.get("epoch")

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
        ends = max(self.get("last"), self.get("from"), self.now) + self.get("off") + self.terms.longest_window
        if self.terms.cold_wait:
            return max(ends, self.time + MONTH)
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

    def earliest_time(self, rate: Rate, units: int) -> int:
        """Return the first time at which a rate has room for ``units``."""
        algorithm, key = self.terms.algorithm, rate.window
        if algorithm != "window":
            burst = max(self.terms.burst_of(rate), units)
            return self.get(f"tat:{key}") - (burst - units) * self.interval_of(rate)
        self.recount_aside(rate)
        ring, limit = self.ring_of(rate), self.limit_of(rate)
        at, total = self.get(f"z:{key}"), self.get(f"n:{key}") if ring else 0
        for time, number in itertools.islice(ring, self.get(f"x:{key}"), None):
            if total + units <= limit or total <= 0:
                break
            at, total = max(at, time), total - number
        return at + rate.window + rate.margin if at else 0

    def add_to_rate(self, rate: Rate, slot: int, units: int) -> None:
        """Book ``units`` for a slot, in one rate."""
        key, slot = rate.window, floor_to_grid(slot)
        if self.terms.algorithm != "window":
            self.meta[f"tat:{key}"] = max(self.get(f"tat:{key}"), slot) + units * self.interval_of(rate)
        else:
            ring = self.ring_of(rate)
            if f"n:{key}" not in self.meta and self.get("last"):
                self.meta[f"b:{key}"] = self.get("last")
            total, aside = (self.get(f"n:{key}"), self.get(f"x:{key}")) if ring else (0, 0)
            total += units
            at = cell_end(rate, slot)
            if ring and ring[-1][0] >= at:
                ring[-1][1] += units
            else:
                ring.append([at, units])
            while len(ring) - aside > 1 and total - ring[aside][1] >= rate.limit:
                total, aside = total - ring[aside][1], aside + 1
            while aside and (aside > MAX_ASIDE or ring[0][0] <= self.now - rate.window):
                self.meta[f"z:{key}"] = ring.pop(0)[0]
                aside -= 1
            self.meta[f"n:{key}"] = total
            self.meta[f"x:{key}"] = aside

    def recount_aside(self, rate: Rate) -> None:
        """Count bookings again that were set aside, if slots were given back or the limit was raised."""
        ring, key = self.ring_of(rate), rate.window
        total, aside = self.get(f"n:{key}"), self.get(f"x:{key}")
        while ring and aside and total < rate.limit:
            aside -= 1
            total += ring[aside][1]
            self.meta[f"n:{key}"], self.meta[f"x:{key}"] = total, aside

    def remove_from_rate(self, rate: Rate, slot: int, units: int) -> None:
        """Remove ``units`` of a booking that were not used from one rate, if the booking is still stored."""
        key, slot = rate.window, floor_to_grid(slot)
        if self.terms.algorithm != "window":
            if slot == self.get("last"):  # otherwise later bookings depend on it
                self.meta[f"tat:{key}"] = self.get(f"tat:{key}") - units * self.interval_of(rate)
        else:
            ring, at = self.ring_of(rate), cell_end(rate, slot)
            found = bisect.bisect_left(ring, [at])
            if found < len(ring) and ring[found][0] == at:
                units = min(units, ring[found][1])
                ring[found][1] -= units
                aside = self.get(f"x:{key}")
                if not ring[found][1]:
                    del ring[found]
                    self.meta[f"x:{key}"] = aside - (found < aside)
                if found >= aside:
                    self.meta[f"n:{key}"] = self.get(f"n:{key}") - units

    def newest_booking(self) -> int:
        """Return the time of the last booking: it is in every ring, in some only as the end of its cell."""
        ends = []
        for rate in self.terms.rates:
            ring, key = self.ring_of(rate), rate.window
            ends.append(max(ring[-1][0] if ring else self.get(f"z:{key}"), self.get(f"b:{key}")))
        return min(ends)

    # All rates

    def first_slot(self, units: int, spaced: bool = False) -> int:
        """Return the first slot for which all rates have room, after all others; ``spaced``: at some distance."""
        firsts = [(self.earliest_time(rate, units), rate) for rate in self.terms.rates]
        bound, strictest = max(firsts, key=lambda one: one[0])
        slot = max(floor_to_grid(self.now), ceil_to_grid(max(bound, self.get("from"), self.get("last") + 1)))
        if spaced and slot > self.now + 2 * TICK and self.terms.algorithm == "window":
            slot = max(slot, ceil_to_grid(self.get("last") + units * self.interval_of(strictest)))
        return slot

    def find_free_slot(self, units: int) -> int:
        """Return the index of the first slot given back that has enough units, of the first few; -1: none."""
        start = bisect.bisect_left(self.state.free, (self.now, ""))
        for index in range(start, min(start + MAX_EXAMINED, len(self.state.free))):
            slot, member = self.state.free[index]
            base = floor_to_grid(slot)
            if int(member.partition(":")[0]) >= units and self.unused_number(base) < base + GRID:
                return index
        return -1

    def take_free_slot(self, index: int, units: int) -> int:
        """Book a slot that was given back, or a part of it; return its new number."""
        slot, member = self.state.free.pop(index)
        number, _, serial = member.partition(":")
        if int(number) > units:
            bisect.insort(self.state.free, (slot, f"{int(number) - units}:{serial}"))
        taken = self.unused_number(floor_to_grid(slot))
        self.state.gone[str(taken)] = 0
        return taken

    # The line

    def add_to_line(self, slot: int, units: int) -> None:
        """Put a slot in the line."""
        bisect.insort(self.state.line, [slot, units])

    def remove_from_line(self, slot: int, units: int) -> bool:
        """Remove a slot from the line. False: it is not there, because another caller has taken it."""
        line = self.state.line
        index = bisect.bisect_left(line, [slot, units])
        if index == len(line) or line[index] != [slot, units]:
            return False
        del line[index]
        return True

    def take_from_line(self, since: int, latest: int, units: int) -> int | None:
        """Take the first slot of the line from ``since`` to ``latest`` with as many units; ``None``: there is none."""
        start = bisect.bisect_left(self.state.line, [since, 0])
        for index in range(start, min(start + MAX_EXAMINED, len(self.state.line))):
            if self.state.line[index][0] > latest:
                break
            if self.state.line[index][1] == units:
                return self.state.line.pop(index)[0]
        return None

    # Numbers

    def unused_number(self, base: int) -> int:
        """Return the next unused number of a slot."""
        numbers = range(base + GRID - 1, base - 1, -1) if self.state.gone else ()
        return next((taken + 1 for taken in numbers if str(taken) in self.state.gone), base)

    def was_given_back(self, slot: int) -> bool:
        """Return whether the slot was given back under this number."""
        return bool(self.state.gone.get(str(slot)))

    def mark_given_back(self, slot: int) -> None:
        """Record that the slot was given back under this number."""
        self.state.gone[str(slot)] = 1
        old = self.now - self.terms.longest_window
        for number in [number for number in self.state.gone if int(number) < old]:
            del self.state.gone[number]

    def remove_unused(self) -> None:
        """Undo bookings that were never used: slots of the line or given back whose time passed without a caller."""
        for _ in range(MAX_REMOVED):
            if not self.state.line or self.state.line[0][0] >= self.now - self.terms.margin:
                break
            self.remove_units(*self.state.line.pop(0))
        if not self.state.free and self.get("seq"):
            self.meta["seq"] = 0
        for _ in range(MAX_REMOVED):
            if not self.state.free or self.state.free[0][0] >= self.now:
                break
            slot, member = self.state.free.pop(0)
            self.remove_units(slot, int(member.partition(":")[0]))

    def remove_units(self, slot: int, units: int) -> None:
        """Remove ``units`` of a booking from all rates."""
        for rate in self.terms.rates:
            self.remove_from_rate(rate, slot, units)

    def give_back(self, slot: int, units: int) -> None:
        """Give back a future slot, so that the next caller can book it."""
        if self.terms.algorithm != "window" or floor_to_grid(slot) != self.get("last"):
            self.meta["seq"] = self.get("seq") + 1
            bisect.insort(self.state.free, (slot, f"{units}:{self.meta['seq']}"))
            return
        self.remove_units(slot, units)
        self.meta["last"] = min(floor_to_grid(slot), self.newest_booking())
        while self.state.free and floor_to_grid(self.state.free[-1][0]) == self.get("last"):
            slot, member = self.state.free.pop()
            self.remove_units(slot, int(member.partition(":")[0]))
            self.meta["last"] = min(floor_to_grid(slot), self.newest_booking())


def floor_to_grid(slot: int) -> int:
    """Return the time of a slot, from any of its numbers."""
    return slot - slot % GRID


def ceil_to_grid(at: int) -> int:
    """Return the first slot that is not before a time."""
    return at + -at % GRID


def cell_end(rate: Rate, slot: int) -> int:
    """Return the time under which a slot's booking is stored: the end of its cell."""
    return slot + -slot % rate.cell
