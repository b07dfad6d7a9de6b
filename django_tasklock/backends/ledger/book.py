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
one in the line: when it resumes, it claims the first slot of the line that can still be used. So a caller that is late
takes the next slot, and each one behind it the one after, instead of the late caller going to the end. Its edition is
that of the book plus one, which older versions of this package treat as another edition.
"""

from __future__ import annotations

import bisect
import itertools
import math

from django_tasklock.backends.contract.rates import Rate, Terms
from django_tasklock.backends.ledger.state import Entry, State

WHOLE = 1_000_000
"""The whole limit, as a share."""
GRID = 16
"""Microseconds between two slots: room for the numbers under which a slot is booked again."""
TICK = 1000
"""Waits below this many microseconds count as none: slots are on a grid, and some databases count milliseconds."""
LEEWAY = 10_000_000
"""The greatest leeway: microseconds by which a slot may be used later than its time."""
OPEN_FOR = 1_000_000
"""A slot of the line can be claimed from this many microseconds before its time."""
VOTE = 60_000_000
"""Microseconds for which the vote of a process counts."""
KEPT = 2_100_000  # later slots are never used without being resumed: a second, and the time that the reply took
SEEN = 1_000_000
"""Microseconds after which the store's time is recorded again (``idx``). A smaller step back is not noticed."""
LOOKED_AT = 16  # slots given back that one call examines
SWEPT = 64  # slots given back that one call removes
ASIDE = 10_000  # the most bookings that are set aside, although they do not count: until their window is over
MONTH, DAY = 30 * 86_400_000_000, 86_400_000_000


class Ledger:
    """The bookings of one limiter, for one operation at one time of the store, in microseconds since 1970."""

    def __init__(self, state: State, terms: Terms, time: int) -> None:
        self.state = state
        self.meta = state.meta
        self.terms = terms
        self.time = time
        self.rebuilt = False
        if "epoch" not in self.meta:
            self.begin(time, terms.cold_wait)
        if self.get("hz") < terms.horizon:
            self.meta["hz"] = terms.horizon
        behind = self.get("idx") - time
        if behind >= SEEN:  # the store's clock was set back: the limiter's continues from where it was
            self.meta |= {key: self.get(key) - behind for key in ("off", "until", "changed")}
        far = self.get("hz") + terms.longest + LEEWAY
        # An older version, which does not notice a step back, has booked meanwhile.
        if self.get("last") - self.now > far or self.get("until") - time > far:
            self.begin(max(self.edition + 2, time), wait=True)
            self.rebuilt = True
        if abs(time - self.get("idx")) >= SEEN:
            self.meta["idx"] = time

    def begin(self, edition: int, wait: bool) -> None:
        """Begin an empty book. ``wait``: book nothing for the longest window, because the usage in it is unknown."""
        self.meta.clear()
        self.meta.update(epoch=edition, share=WHOLE, hz=self.terms.horizon)
        self.state.rings.clear()
        self.state.free.clear()
        self.state.gone.clear()
        self.state.line.clear()
        if wait:
            self.meta["from"] = self.time + self.terms.longest

    def replan(self) -> None:
        """Apply other terms from now on: drop the later bookings, so that sleeping callers must book again.

        Bookings up to ``KEPT`` from now stay: their callers may use them without asking again.
        """
        cut = base_of(self.now + KEPT)
        cut = max(cut, min(self.get("lee"), cut + LEEWAY))
        last = min(self.get("last"), cut)
        self.meta.update(epoch=max(self.edition + 2, self.time), last=last, seq=0)
        self.state.free.clear()
        self.state.gone.clear()
        self.state.line.clear()
        for rate in self.terms.rates:
            key, cell = rate.window, -(-rate.window // 100)
            if self.terms.algorithm == "window":
                ring = self.ring(rate)
                while ring and ring[-1][0] > cut and (ring[-1][0] % cell or ring[-1][0] - cell >= cut):
                    ring.pop()  # except a cell that began before the cut
                self.meta |= {f"n:{key}": 0, f"x:{key}": len(ring), f"b:{key}": last}
                self.meta[f"z:{key}"] = min(self.get(f"z:{key}"), cut)
                self.recount(rate)
            else:  # as if the whole burst had been used then
                self.meta[f"tat:{key}"] = last + self.terms.burst_of(rate) * self.interval(rate)

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

    def wait(self, slot: int) -> int:
        """Return the time from now until a slot; negative if it has passed, never while the clock is stopped."""
        if self.get("until") > self.time:
            slot = max(slot, self.now)
        return slot + self.get("off") - self.time

    @property
    def expires(self) -> int:
        """When the state can be deleted, in microseconds since 1970."""
        ends = max(self.get("last"), self.get("from"), self.now) + self.get("off") + self.terms.longest
        if self.terms.cold_wait:
            return max(ends, self.time + MONTH)
        return ends if self.get("share") == WHOLE else max(ends, self.time + DAY)

    # One rate

    def limit(self, rate: Rate) -> int:
        """Return the limit in force."""
        return max(1, rate.limit * self.get("share") // WHOLE)

    def interval(self, rate: Rate) -> int:
        """Return the microseconds between two units if they are spread evenly."""
        return math.ceil((rate.window + rate.margin) / self.limit(rate))

    def ring(self, rate: Rate) -> list[Entry]:
        """Return the bookings of a rate."""
        return self.state.rings.setdefault(str(rate.window), [])

    def first(self, rate: Rate, units: int) -> int:
        """Return the first time at which a rate has room for ``units``."""
        algorithm, key = self.terms.algorithm, rate.window
        if algorithm != "window":
            burst = max(self.terms.burst_of(rate), units)
            return self.get(f"tat:{key}") - (burst - units) * self.interval(rate)
        self.recount(rate)
        ring, limit = self.ring(rate), self.limit(rate)
        at, total = self.get(f"z:{key}"), self.get(f"n:{key}") if ring else 0
        for time, number in itertools.islice(ring, self.get(f"x:{key}"), None):
            if total + units <= limit or total <= 0:
                break
            at, total = max(at, time), total - number
        return at + rate.window + rate.margin if at else 0

    def enter(self, rate: Rate, slot: int, units: int) -> None:
        """Book ``units`` for a slot, in one rate."""
        key, slot = rate.window, base_of(slot)
        if self.terms.algorithm != "window":
            self.meta[f"tat:{key}"] = max(self.get(f"tat:{key}"), slot) + units * self.interval(rate)
        else:
            ring = self.ring(rate)
            if f"n:{key}" not in self.meta and self.get("last"):
                self.meta[f"b:{key}"] = self.get("last")
            total, aside = (self.get(f"n:{key}"), self.get(f"x:{key}")) if ring else (0, 0)
            total += units
            at = end_of(rate, slot)
            if ring and ring[-1][0] >= at:
                ring[-1][1] += units
            else:
                ring.append([at, units])
            while len(ring) - aside > 1 and total - ring[aside][1] >= rate.limit:
                total, aside = total - ring[aside][1], aside + 1
            while aside and (aside > ASIDE or ring[0][0] <= self.now - rate.window):
                self.meta[f"z:{key}"] = ring.pop(0)[0]
                aside -= 1
            self.meta[f"n:{key}"] = total
            self.meta[f"x:{key}"] = aside

    def recount(self, rate: Rate) -> None:
        """Count bookings again that were set aside, if slots were given back or the limit was raised."""
        ring, key = self.ring(rate), rate.window
        total, aside = self.get(f"n:{key}"), self.get(f"x:{key}")
        while ring and aside and total < rate.limit:
            aside -= 1
            total += ring[aside][1]
            self.meta[f"n:{key}"], self.meta[f"x:{key}"] = total, aside

    def strike(self, rate: Rate, slot: int, units: int) -> None:
        """Remove ``units`` of a booking that were not used from one rate, if the booking is still stored."""
        key, slot = rate.window, base_of(slot)
        if self.terms.algorithm != "window":
            if slot == self.get("last"):  # otherwise later bookings depend on it
                self.meta[f"tat:{key}"] = self.get(f"tat:{key}") - units * self.interval(rate)
        else:
            ring, at = self.ring(rate), end_of(rate, slot)
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

    def newest(self) -> int:
        """Return the time of the last booking: it is in every ring, in some only as the end of its cell."""
        ends = []
        for rate in self.terms.rates:
            ring, key = self.ring(rate), rate.window
            ends.append(max(ring[-1][0] if ring else self.get(f"z:{key}"), self.get(f"b:{key}")))
        return min(ends)

    # All rates

    def first_slot(self, units: int, spaced: bool = False) -> int:
        """Return the first slot for which all rates have room, after all others; ``spaced``: at some distance."""
        firsts = [(self.first(rate, units), rate) for rate in self.terms.rates]
        bound, strictest = max(firsts, key=lambda one: one[0])
        slot = max(base_of(self.now), up(max(bound, self.get("from"), self.get("last") + 1)))
        if spaced and slot > self.now + 2 * TICK and self.terms.algorithm == "window":
            slot = max(slot, up(self.get("last") + units * self.interval(strictest)))
        return slot

    def found(self, units: int) -> int:
        """Return the index of the first slot given back that has enough units, of the first few; -1: none."""
        start = bisect.bisect_left(self.state.free, (self.now, ""))
        for index in range(start, min(start + LOOKED_AT, len(self.state.free))):
            slot, member = self.state.free[index]
            if int(member.partition(":")[0]) >= units and self.number(base_of(slot)) < base_of(slot) + GRID:
                return index
        return -1

    def take(self, index: int, units: int) -> int:
        """Book a slot that was given back, or a part of it; return its new number."""
        slot, member = self.state.free.pop(index)
        number, _, serial = member.partition(":")
        if int(number) > units:
            bisect.insort(self.state.free, (slot, f"{int(number) - units}:{serial}"))
        taken = self.number(base_of(slot))
        self.state.gone[str(taken)] = 0
        return taken

    # The line

    def stand(self, slot: int, units: int) -> None:
        """Put a slot in the line."""
        bisect.insort(self.state.line, [slot, units])

    def leave(self, slot: int, units: int) -> bool:
        """Remove a slot from the line. False: it is not there, because another caller has claimed it."""
        line = self.state.line
        index = bisect.bisect_left(line, [slot, units])
        if index == len(line) or line[index] != [slot, units]:
            return False
        del line[index]
        return True

    def claim(self, since: int, latest: int, units: int) -> int | None:
        """Take the first slot of the line from ``since`` to ``latest`` with as many units; ``None``: there is none."""
        start = bisect.bisect_left(self.state.line, [since, 0])
        for index in range(start, min(start + LOOKED_AT, len(self.state.line))):
            if self.state.line[index][0] > latest:
                break
            if self.state.line[index][1] == units:
                return self.state.line.pop(index)[0]
        return None

    # Numbers

    def number(self, base: int) -> int:
        """Return the next unused number of a slot."""
        numbers = range(base + GRID - 1, base - 1, -1) if self.state.gone else ()
        return next((taken + 1 for taken in numbers if str(taken) in self.state.gone), base)

    def known(self, slot: int) -> bool:
        """Return whether the slot was not given back under this number."""
        return not self.state.gone.get(str(slot))

    def bury(self, slot: int) -> None:
        """Record that the slot was given back under this number."""
        self.state.gone[str(slot)] = 1
        old = self.now - self.terms.longest
        for number in [number for number in self.state.gone if int(number) < old]:
            del self.state.gone[number]

    def sweep(self) -> None:
        """Undo bookings that were never used: slots of the line or given back whose time passed without a caller."""
        for _ in range(SWEPT):
            if not self.state.line or self.state.line[0][0] >= self.now - self.terms.margin:
                break
            self.undo(*self.state.line.pop(0))
        if not self.state.free and self.get("seq"):
            self.meta["seq"] = 0
        for _ in range(SWEPT):
            if not self.state.free or self.state.free[0][0] >= self.now:
                break
            slot, member = self.state.free.pop(0)
            self.undo(slot, int(member.partition(":")[0]))

    def undo(self, slot: int, units: int) -> None:
        """Remove ``units`` of a booking from all rates."""
        for rate in self.terms.rates:
            self.strike(rate, slot, units)

    def give(self, slot: int, units: int) -> None:
        """Give back a future slot, so that the next caller can book it."""
        if self.terms.algorithm != "window" or base_of(slot) != self.get("last"):
            self.meta["seq"] = self.get("seq") + 1
            bisect.insort(self.state.free, (slot, f"{units}:{self.meta['seq']}"))
            return
        self.undo(slot, units)
        self.meta["last"] = min(base_of(slot), self.newest())
        while self.state.free and base_of(self.state.free[-1][0]) == self.get("last"):
            slot, member = self.state.free.pop()
            self.undo(slot, int(member.partition(":")[0]))
            self.meta["last"] = min(base_of(slot), self.newest())


def base_of(slot: int) -> int:
    """Return the time of a slot, from any of its numbers."""
    return slot - slot % GRID


def up(at: int) -> int:
    """Return the first slot that is not before a time."""
    return at + -at % GRID


def end_of(rate: Rate, slot: int) -> int:
    """Return the time under which a slot's booking is stored: the end of its cell."""
    return slot + -slot % rate.cell
