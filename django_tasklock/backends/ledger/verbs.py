"""The operations of a store of rate limits on a ``RateBook``, by their names: ``lua/rate_*.lua`` in plain Python."""

from __future__ import annotations

from django_tasklock.backends.contract.rates import Booked, Penalty, Refused, Usage, WindowUnits
from django_tasklock.backends.ledger.book import FULL_SHARE, OPENS_BEFORE, SHORT_NOTICE, TICK, RateBook


def reserve(book: RateBook, cost: int, max_wait: int, spaced: int = 0) -> Booked | Refused:
    """Book the first slot."""
    book.follow_raise(cost)
    return book_slot(book, cost, max_wait, spaced)


def book_slot(book: RateBook, cost: int, max_wait: int, spaced: int) -> Booked | Refused:
    """Book the first slot, by a limit that is no other than before."""
    raise_lowered_limit(book)
    book.remove_unused()
    index = book.find_free_slot(cost)
    slot = book.first_slot(cost, bool(spaced)) if index < 0 else book.state.free[index][0]
    wait = book.time_until(slot)
    if wait > max_wait and wait >= TICK:
        book.meta["refused"] = book.get("refused") + 1
        return Refused(wait)
    edition = book.add(slot, cost) if index < 0 else book.take_free_slot(index, cost)
    if book.get("share") < FULL_SHARE:
        book.meta["spent"] = book.get("spent") + cost
    if wait > OPENS_BEFORE:
        book.add_to_line(slot, cost)
    return as_booked(book, slot, edition, in_line=wait > OPENS_BEFORE)


def reserve_many(book: RateBook, cost: int, max_wait: int, number: int) -> list[Booked | Refused]:
    """Do what ``reserve`` does ``number`` times, spaced, up to the first refusal."""
    answers: list[Booked | Refused] = []
    book.follow_raise(cost)
    while len(answers) < number and not (answers and isinstance(answers[-1], Refused)):
        answers.append(book_slot(book, cost, max_wait, spaced=1))
    return answers


def resume(book: RateBook, cost: int, slot: int, edition: int, max_wait: int, spaced: int = 0) -> Booked | Refused:
    """Return the current state of a slot: ahead, due, or another one."""
    book.follow_raise(cost)
    if edition < book.edition:
        return book_slot(book, cost, max_wait, spaced)
    book.remove_unused()
    owned, opens = book.is_owned(slot, edition), slot - OPENS_BEFORE <= book.now
    in_line = owned and [slot, cost] in book.state.line
    if in_line and not opens:
        index = book.find_free_slot(cost)
        if index >= 0 and book.state.free[index][0] < slot:
            book.remove_from_line(slot, cost)
            earlier, edition = book.state.free[index][0], book.take_free_slot(index, cost)
            book.give_back(slot, cost)
            slot = earlier
            book.add_to_line(slot, cost)
        return as_booked(book, slot, edition, in_line=True)
    if owned and not in_line:
        if slot >= book.now - book.terms.margin:
            return as_booked(book, slot, edition)
        book.remove_units(slot, cost)
    # Its own slot, or an earlier one of a caller that is late, but not at short notice; and one with less than half of
    # its margin left would be missed before the reply arrives.
    usable = book.now - book.terms.margin // 2
    wasted = slot < usable and book.edition_of(book.terms.rates[0], slot) == edition
    since = max(usable, min(slot, book.now + SHORT_NOTICE) if opens else slot)
    taken = book.take_from_line(since, max(slot, book.now + max_wait), cost)
    if taken is None:
        return book_slot(book, cost, max_wait, spaced)
    edition = book.newest_edition
    if wasted:  # as many slots as callers stay in the line, so that who comes later finds its own
        last = book.first_slot(cost, bool(spaced))
        book.add(last, cost)
        book.add_to_line(last, cost)
    return as_booked(book, taken, edition)


def cancel(book: RateBook, cost: int, slot: int, edition: int) -> bool:
    """Give back a slot that was not used. Repeated calls give it back once."""
    if not book.is_owned(slot, edition):
        return False
    book.remove_from_line(slot, cost)
    if slot > book.now:
        book.give_back(slot, cost)
    else:
        book.remove_units(slot, cost)
    return True


def settle(book: RateBook, cost: int, slot: int, edition: int, actual: int) -> bool:
    """Correct the booking of a call to its actual cost."""
    rates = [rate for rate in book.terms.rates if book.edition_of(rate, slot) == edition]
    if actual == cost or not rates:
        return False
    for rate in rates:
        book.correct_units(rate, slot, actual - cost)
    return True


def penalize(book: RateBook, amount: int, absolute: int, max_length: int) -> Penalty:
    """Stop the limiter's clock, and lower an adaptive limit, at most once in its shortest window."""
    until = min(amount if absolute else book.time + amount, book.time + max_length)
    before = max(book.time, book.get("until"))
    if until > before:
        book.meta["off"] = book.get("off") + until - before
        book.meta["until"] = until
    if book.terms.min_share and book.time >= book.get("changed") + book.terms.adaptation_interval:
        set_share(book, max(book.terms.min_share, book.get("share") * 7 // 10))
    return Penalty(max(0, book.get("until") - book.time), book.get("share"))


def pause(book: RateBook, length: int) -> None:
    """Stop the limiter's clock for exactly ``length`` from now; 0: start it again."""
    left = max(0, book.get("until") - book.time)
    book.meta["off"] = book.get("off") + length - left
    book.meta["until"] = book.time + length


def adjust(book: RateBook, share: int) -> None:
    """Set the current share of the limit, in millionths; if it is raised, callers that wait book again."""
    if share > book.get("share"):
        book.drop_ahead()
    set_share(book, share)


def set_share(book: RateBook, share: int) -> None:
    """Set the share; bookings stay."""
    book.meta |= {"share": share, "changed": book.time, "spent": 0}


def raise_lowered_limit(book: RateBook) -> None:
    """Raise a lowered limit by one, at most once in a window, if at least half of it was used."""
    share, due = book.get("share"), book.get("changed") + book.terms.adaptation_interval
    if not book.terms.min_share or share >= FULL_SHARE or book.time < due:
        return
    rate = min(book.terms.rates, key=lambda rate: rate.window)
    if book.get("spent") * 2 >= book.limit_of(rate):
        share = min(FULL_SHARE, share + -(-FULL_SHARE // rate.limit))
    set_share(book, share)


def usage(book: RateBook) -> Usage:
    """Return the usage of the limiter."""
    rates = []
    for rate in book.terms.rates:
        used = ahead = 0
        for slot, units, _ in book.ring_of(rate):
            if slot > book.now:
                ahead += units
            elif slot > book.now - rate.window:
                used += units
        rates.append(WindowUnits(book.limit_of(rate), used, ahead))
    index = book.find_free_slot(1)
    following = book.first_slot(1) if index < 0 else book.state.free[index][0]
    return Usage(
        time=book.time,
        rates=tuple(rates),
        free=sum(slot >= book.now for slot, _ in book.state.free),
        next=max(0, book.time_until(following)),
        tail=max(0, book.time_until(book.get("last"))) if book.get("last") else 0,
        paused=max(0, book.get("until") - book.time),
        share=book.get("share"),
        refused=book.get("refused"),
    )


def reset(book: RateBook) -> None:
    """Drop all usage and bookings."""
    book.begin_edition(max(book.newest_edition + 1, book.time))


def as_booked(book: RateBook, slot: int, edition: int, in_line: bool = False) -> Booked:
    """Return the result for a slot that is booked."""
    wait = book.time_until(slot)
    return Booked(slot, wait, edition, book.get("off"), book.time + wait, in_line)
