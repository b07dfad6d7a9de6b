"""A limiter's book in plain Python: what the memory and database stores keep, and the model of the Redis scripts.

``lua/_rates.lua`` says the same in the same words; a property test holds the two together.

Why no window holds more than the limit: a slot is never booked before any later one
(``last``), and always a window and a margin after the one booked ``limit`` units before it.
What came before those ``limit`` units counts no longer and stands aside (``x``) in the ring, until
its window is over; then it is dropped, and only the newest of it remembered (``z``). Nothing else
is removed but what was not used.

No two slots have the same number, so that whoever gives his back twice gives it back once: slots
are sixteen microseconds apart, and whoever takes one that was given back has the next number in
between. Numbers that nobody holds any more are remembered (``gone``) until their window is over.

Whoever says that he will ask again before he goes, and has to wait for longer than a moment, has no slot
of his own but one in the line: on arrival he claims the first one there that is still good. So
who is late takes the next one, and everybody behind him the next but one, in place of one who
goes to the end. His edition is the book's and one, which older versions of this do not know.
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
"""Microseconds between two slots: room for the numbers of those who take them again."""
TICK = 1000
"""Microseconds that are no wait: callers of one moment are on a grid, and some databases count milliseconds."""
LEEWAY = 10_000_000
"""The most by which a slot may be booked for later than its caller was told."""
OPEN_FOR = 1_000_000
"""Microseconds before its turn for which a slot of the line may be claimed."""
VOTE = 60_000_000
"""Microseconds for which it counts that a process has said its terms."""
KEPT = 2_100_000  # nobody goes to a later slot without asking: a second, and what the answer took
SEEN = 1_000_000
"""Microseconds after which the store's time is noted again (``idx``): by less its clock may be set back unseen."""
LOOKED_AT = 16  # slots given back that one call looks at
SWEPT = 64  # and that one call forgets
ASIDE = 10_000  # bookings that are kept although they count no longer: until their window is over
MONTH, DAY = 30 * 86_400_000_000, 86_400_000_000


class Ledger:
    """One limiter's book, opened by one verb at one time of the store, microseconds since 1970."""

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
        if behind >= SEEN:  # the store's clock was set back: the limiter's goes on from where it was
            self.meta |= {key: self.get(key) - behind for key in ("off", "until", "changed")}
        far = self.get("hz") + terms.longest + LEEWAY
        # It was set back, and a version that does not see that has booked.
        if self.get("last") - self.now > far or self.get("until") - time > far:
            self.begin(max(self.edition + 2, time), wait=True)
            self.rebuilt = True
        if abs(time - self.get("idx")) >= SEEN:
            self.meta["idx"] = time

    def begin(self, edition: int, wait: bool) -> None:
        """Empty the book. ``wait``: for one window nobody knows what was used."""
        self.meta.clear()
        self.meta.update(epoch=edition, share=WHOLE, hz=self.terms.horizon)
        self.state.rings.clear()
        self.state.free.clear()
        self.state.gone.clear()
        self.state.line.clear()
        if wait:
            self.meta["from"] = self.time + self.terms.longest

    def replan(self) -> None:
        """Let other terms hold from now on: what is booked for later is dropped, and whoever sleeps books again.

        Slots in the next moment stay booked, for their callers may go to them without asking again.
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
                    ring.pop()  # but a cell that began before
                self.meta |= {f"n:{key}": 0, f"x:{key}": len(ring), f"b:{key}": last}
                self.meta[f"z:{key}"] = min(self.get(f"z:{key}"), cut)
                self.recount(rate)
            else:  # as if all had been used then
                self.meta[f"tat:{key}"] = last + self.terms.burst_of(rate) * self.interval(rate)

    def get(self, key: str) -> int:
        """Return a number of the book, 0 where it has none."""
        return self.meta.get(key, 0)

    @property
    def edition(self) -> int:
        """Which of the limiter's books this is: the time at which it was begun. Stored as ``epoch``."""
        return self.get("epoch")

    @property
    def now(self) -> int:
        """The limiter's clock: it stands still until ``until``."""
        return max(self.time, self.get("until")) - self.get("off")

    def wait(self, slot: int) -> int:
        """Return the time from now to its turn; negative if that was before, unless the clock stands still."""
        if self.get("until") > self.time:
            slot = max(slot, self.now)
        return slot + self.get("off") - self.time

    @property
    def expires(self) -> int:
        """When nothing in here matters any more."""
        ends = max(self.get("last"), self.get("from"), self.now) + self.get("off") + self.terms.longest
        if self.terms.cold_wait:
            return max(ends, self.time + MONTH)
        return ends if self.get("share") == WHOLE else max(ends, self.time + DAY)

    # One rate

    def limit(self, rate: Rate) -> int:
        """Return the limit in force."""
        return max(1, rate.limit * self.get("share") // WHOLE)

    def interval(self, rate: Rate) -> int:
        """Return the microseconds between two units, where they are spread evenly."""
        return math.ceil((rate.window + rate.margin) / self.limit(rate))

    def ring(self, rate: Rate) -> list[Entry]:
        """Return its bookings."""
        return self.state.rings.setdefault(str(rate.window), [])

    def first(self, rate: Rate, units: int) -> int:
        """Return the first time at which it has room for so many units."""
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
        """Note so many units as booked for a slot."""
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
        """Count again what stands aside, if slots were given back or the limit was raised."""
        ring, key = self.ring(rate), rate.window
        total, aside = self.get(f"n:{key}"), self.get(f"x:{key}")
        while ring and aside and total < rate.limit:
            aside -= 1
            total += ring[aside][1]
            self.meta[f"n:{key}"], self.meta[f"x:{key}"] = total, aside

    def strike(self, rate: Rate, slot: int, units: int) -> None:
        """Undo a booking that was not used, as far as the book still knows it."""
        key, slot = rate.window, base_of(slot)
        if self.terms.algorithm != "window":
            if slot == self.get("last"):  # later bookings were built upon it otherwise
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
        """Return the time after which nothing is booked: every ring has the last booking, some only know its cell."""
        ends = []
        for rate in self.terms.rates:
            ring, key = self.ring(rate), rate.window
            ends.append(max(ring[-1][0] if ring else self.get(f"z:{key}"), self.get(f"b:{key}")))
        return min(ends)

    # All rates

    def first_slot(self, units: int, spaced: bool = False) -> int:
        """Return the first time at which all rates have room, behind everybody else; ``spaced``: at some distance."""
        firsts = [(self.first(rate, units), rate) for rate in self.terms.rates]
        bound, strictest = max(firsts, key=lambda one: one[0])
        slot = max(base_of(self.now), up(max(bound, self.get("from"), self.get("last") + 1)))
        if spaced and slot > self.now + 2 * TICK and self.terms.algorithm == "window":
            slot = max(slot, up(self.get("last") + units * self.interval(strictest)))
        return slot

    def found(self, units: int) -> int:
        """Return where among the first slots given back one is big enough; -1: none."""
        start = bisect.bisect_left(self.state.free, (self.now, ""))
        for index in range(start, min(start + LOOKED_AT, len(self.state.free))):
            slot, member = self.state.free[index]
            if int(member.partition(":")[0]) >= units and self.number(base_of(slot)) < base_of(slot) + GRID:
                return index
        return -1

    def take(self, index: int, units: int) -> int:
        """Take a slot that was given back, or a part of it; return the number that it has now."""
        slot, member = self.state.free.pop(index)
        number, _, serial = member.partition(":")
        if int(number) > units:
            bisect.insort(self.state.free, (slot, f"{int(number) - units}:{serial}"))
        taken = self.number(base_of(slot))
        self.state.gone[str(taken)] = 0
        return taken

    # The line

    def stand(self, slot: int, units: int) -> None:
        """Let this slot be claimed."""
        bisect.insort(self.state.line, [slot, units])

    def leave(self, slot: int, units: int) -> bool:
        """Take this slot out of the line; False: it is not there, somebody has claimed it."""
        line = self.state.line
        index = bisect.bisect_left(line, [slot, units])
        if index == len(line) or line[index] != [slot, units]:
            return False
        del line[index]
        return True

    def claim(self, since: int, latest: int, units: int) -> int | None:
        """Take the first slot of the line that is still good, not before ``since``; ``None``: there is none."""
        start = bisect.bisect_left(self.state.line, [since, 0])
        for index in range(start, min(start + LOOKED_AT, len(self.state.line))):
            if self.state.line[index][0] > latest:
                break
            if self.state.line[index][1] == units:
                return self.state.line.pop(index)[0]
        return None

    # Numbers

    def number(self, base: int) -> int:
        """Return the next number of a slot that nobody has had."""
        numbers = range(base + GRID - 1, base - 1, -1) if self.state.gone else ()
        return next((taken + 1 for taken in numbers if str(taken) in self.state.gone), base)

    def known(self, slot: int) -> bool:
        """Return whether somebody may hold it still."""
        return not self.state.gone.get(str(slot))

    def bury(self, slot: int) -> None:
        """Note that nobody holds this number any more."""
        self.state.gone[str(slot)] = 1
        old = self.now - self.terms.longest
        for number in [number for number in self.state.gone if int(number) < old]:
            del self.state.gone[number]

    def sweep(self) -> None:
        """Forget slots that were given back, or stood in line, and that nobody took in time: they were never used."""
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
        """Strike it out of every ring."""
        for rate in self.terms.rates:
            self.strike(rate, slot, units)

    def give(self, slot: int, units: int) -> None:
        """Give back a slot of the future: the next who comes may have it."""
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
    """Return as what time a slot is booked, whoever has it by now."""
    return slot - slot % GRID


def up(at: int) -> int:
    """Return the first slot that is not before this time."""
    return at + -at % GRID


def end_of(rate: Rate, slot: int) -> int:
    """Return as what time a booking is remembered: the end of its cell."""
    return slot + -slot % rate.cell
