"""The operations of a store of rate limits on a ``RateBook``: ``lua/rate_*.lua`` in plain Python."""

from __future__ import annotations

from collections.abc import Sequence

from django_tasklock.backends.contract.rates import Booked, Penalty, Pushback, Refused, Usage, WindowUnits
from django_tasklock.backends.ledger.book import (
    FULL_SHARE,
    GRID,
    MAX_LEEWAY,
    OPENS_BEFORE,
    TICK,
    RateBook,
    ceil_to_grid,
    cell_end,
    floor_to_grid,
)


def reserve(
    book: RateBook, cost: int, max_wait: int, spaced: bool = False, will_resume: bool = False, leeway: int = 0
) -> Booked | Refused:
    """Book the first slot. One with leeway is booked for the latest time at which it may be used.

    ``will_resume``: the caller will resume the slot before using it.
    """
    raise_lowered_limit(book)
    book.remove_unused()
    index = -1 if leeway else book.find_free_slot(cost)
    slot = book.first_slot(cost, spaced) if index < 0 else floor_to_grid(book.state.free[index][0])
    wait = book.time_until(slot)
    if wait > max_wait and wait >= TICK:
        book.meta["refused"] = book.get("refused") + 1
        return Refused(wait, book.edition, book.get("off"))
    if index >= 0:
        slot = book.take_free_slot(index, cost)
    else:
        leeway = min(leeway, MAX_LEEWAY)
        slot = ceil_to_grid(slot + leeway)
        while (number := book.unused_number(slot)) >= slot + GRID:
            slot += GRID
        for rate in book.terms.rates:
            book.add_to_rate(rate, slot, cost)
        book.meta["last"] = slot
        slot = number
    if book.get("share") < FULL_SHARE:
        book.meta["spent"] = book.get("spent") + cost
    in_line = will_resume and wait > OPENS_BEFORE and not leeway
    if in_line:
        book.add_to_line(slot, cost)
    return Booked(slot, wait, book.edition + in_line, book.get("off"), book.time + wait, book.rebuilt, leeway, in_line)


def resume(
    book: RateBook, cost: int, slot: int, edition: int, max_wait: int, spaced: bool = False, leeway: int = 0
) -> Booked | Refused:
    """Return the current state of a slot: due, ahead, exchanged for an earlier one, or a new one if missed."""
    if edition == book.edition + 1:
        return resume_in_line(book, cost, slot, max_wait, spaced, leeway)
    if edition != book.edition or book.was_given_back(slot):
        return reserve(book, cost, max_wait, spaced, False, leeway)
    if slot > book.now:
        book.remove_unused()
        index = book.find_free_slot(cost)
        if index >= 0 and book.state.free[index][0] < slot:
            better = book.take_free_slot(index, cost)
            book.mark_given_back(slot)
            book.give_back(slot, cost)
            slot = better
        return as_booked(book, slot)
    if book.now - floor_to_grid(slot) <= book.terms.margin:
        return as_booked(book, slot)
    book.mark_given_back(slot)
    book.remove_units(slot, cost)
    return take_next_slot(book, cost, slot, max_wait, spaced, False, leeway)


def exchange(
    book: RateBook, cost: int, slots: Sequence[int], edition: int, max_wait: int, leeway: int = 0
) -> list[Booked | Refused]:
    """Do what ``resume`` does for several missed slots."""
    return [resume(book, cost, slot, edition, max_wait, leeway=leeway) for slot in slots]


def resume_in_line(book: RateBook, cost: int, slot: int, max_wait: int, spaced: bool, leeway: int) -> Booked | Refused:
    """Do what ``resume`` does for a slot in the line: the caller takes the first one there that can still be used."""
    book.remove_unused()
    if slot > book.now + OPENS_BEFORE:
        index = book.find_free_slot(cost)
        if index >= 0 and book.state.free[index][0] < slot and book.remove_from_line(slot, cost):
            better = book.take_free_slot(index, cost)
            book.mark_given_back(slot)
            book.give_back(slot, cost)
            slot = better
            book.add_to_line(slot, cost)
        return as_booked(book, slot, in_line=True)
    return take_next_slot(book, cost, slot, max_wait, spaced, True, leeway)


def take_next_slot(
    book: RateBook, cost: int, slot: int, max_wait: int, spaced: bool, will_resume: bool, leeway: int
) -> Booked | Refused:
    """Return the first slot of the line that can still be used, or a new one after all others."""
    # A slot with less than half of its margin left would be missed before the reply arrives.
    since = slot if slot > book.now else ceil_to_grid(book.now - book.terms.margin // 2)
    found = None if leeway else book.take_from_line(since, max(slot, book.now + max_wait), cost)
    return reserve(book, cost, max_wait, spaced, will_resume, leeway) if found is None else as_booked(book, found)


def cancel(book: RateBook, cost: int, slot: int, edition: int) -> bool:
    """Give back a slot that was not used. Repeated calls give it back once."""
    if edition == book.edition + 1:
        if not book.remove_from_line(slot, cost):
            return False
    elif edition != book.edition or book.was_given_back(slot) or slot < book.now - book.terms.longest_window:
        return False
    book.mark_given_back(slot)
    if slot > book.now:
        book.give_back(slot, cost)
    else:
        book.remove_units(slot, cost)
    return True


def settle(book: RateBook, cost: int, slot: int, edition: int, actual: int) -> bool:
    """Correct the booking of a call to its actual cost."""
    if edition != book.edition or actual == cost or book.was_given_back(slot):
        return False
    if actual < cost:
        book.remove_units(slot, cost - actual)
        return True
    more = actual - cost
    for rate in book.terms.rates:
        if book.terms.algorithm != "window":
            book.add_to_rate(rate, slot, more)
            continue
        ring, at = book.ring_of(rate), cell_end(rate, floor_to_grid(slot))
        if at + rate.window + rate.margin <= book.now:
            continue
        if not ring:  # its own was the only booking, and was settled to nothing before
            book.add_to_rate(rate, slot, more)
            continue
        counted = ring[book.get(f"x:{rate.window}") :]
        entry = next((entry for entry in counted if entry[0] == at), ring[-1])  # not stored any more: the last
        entry[1] += more
        book.meta[f"n:{rate.window}"] = book.get(f"n:{rate.window}") + more
    return True


def penalize(book: RateBook, pushback: Pushback, max_length: int) -> Penalty:
    """Stop the limiter's clock, and lower an adaptive limit, at most once in its shortest window."""
    wanted = pushback.amount if pushback.absolute else book.time + pushback.amount
    until = min(wanted, book.time + max_length)
    before = max(book.time, book.get("until"))
    if until > before:
        book.meta["off"] = book.get("off") + until - before
        book.meta["until"] = until
    if book.terms.min_share and book.time >= book.get("changed") + book.terms.adaptation_interval:
        book.meta["share"] = max(book.terms.min_share, book.get("share") * 7 // 10)
        book.meta["changed"] = book.time
        book.meta["spent"] = 0
    return Penalty(max(0, book.get("until") - book.time), book.get("share"))


def pause(book: RateBook, length: int) -> None:
    """Stop the limiter's clock for exactly ``length`` from now; 0: start it again."""
    left = max(0, book.get("until") - book.time)
    book.meta["off"] = book.get("off") + length - left
    book.meta["until"] = book.time + length
    book.meta["hz"] = max(book.get("hz"), length)  # a longer stop would look like a clock that was set back


def adjust(book: RateBook, share: int) -> None:
    """Set the current share of the limit, in millionths."""
    book.meta["share"] = share
    book.meta["changed"] = book.time
    book.meta["spent"] = 0


def raise_lowered_limit(book: RateBook) -> None:
    """Raise a lowered limit by one, at most once in a window, if at least half of it was used."""
    due = book.get("changed") + book.terms.adaptation_interval
    if not book.terms.min_share or book.get("share") >= FULL_SHARE or book.time < due:
        return
    rate = min(book.terms.rates, key=lambda rate: rate.window)
    if book.get("spent") * 2 >= book.limit_of(rate):
        book.meta["share"] = min(FULL_SHARE, book.get("share") + -(-FULL_SHARE // rate.limit))
    book.meta["changed"] = book.time
    book.meta["spent"] = 0


def usage(book: RateBook) -> Usage:
    """Return the usage of the limiter."""
    rates = []
    for rate in book.terms.rates:
        used = ahead = 0
        if book.terms.algorithm != "window":
            behind = max(0, book.get(f"tat:{rate.window}") - book.now)
            used = -(-behind // book.interval_of(rate))
        for time, number in book.ring_of(rate):
            if time > book.now:
                ahead += number
            elif time > book.now - rate.window:
                used += number
        rates.append(WindowUnits(book.limit_of(rate), used, ahead))
    last, index = book.get("last"), book.find_free_slot(1)
    following = book.first_slot(1) if index < 0 else floor_to_grid(book.state.free[index][0])
    return Usage(
        time=book.time,
        rates=tuple(rates),
        free=sum(slot >= book.now for slot, _ in book.state.free),
        next=max(0, book.time_until(following)),
        tail=max(0, book.time_until(last)) if last else 0,
        paused=max(0, book.get("until") - book.time),
        share=book.get("share"),
        refused=book.get("refused"),
    )


def reset(book: RateBook) -> None:
    """Drop all usage and bookings."""
    book.begin_edition(max(book.edition + 2, book.time), wait_first=False)


def as_booked(book: RateBook, slot: int, in_line: bool = False) -> Booked:
    """Return the result for a slot that is booked already."""
    wait = book.time_until(floor_to_grid(slot))
    edition = book.edition + in_line
    return Booked(slot, wait, edition, book.get("off"), book.time + wait, book.rebuilt, must_resume=in_line)
