"""The verbs of rate limits over a ``Ledger``: ``lua/rate_*.lua`` in plain Python."""

from __future__ import annotations

from django_tasklock.backends.base_rates import Booked, Penalty, Refused, Use, Used
from django_tasklock.backends.ledger import WHOLE, Ledger, end_of
from django_tasklock.backends.ledger_counter import estimate
from django_tasklock.rates import Pushback

__all__ = ["adjust", "cancel", "penalize", "reserve", "reset", "resume", "settle", "use"]


def reserve(book: Ledger, cost: int, longest: int, spaced: bool = False, leeway: int = 0) -> Booked | Refused:
    """Book the first place. One with leeway is booked for the latest time at which it may be used."""
    grow(book)
    book.sweep()
    index = -1 if leeway else book.found(cost)
    slot = book.place(cost, spaced) if index < 0 else book.state.free[index][0]
    wait = book.wait(slot)
    if wait > longest or (book.terms.algorithm == "counter" and wait > 0):
        book.meta["refused"] = book.get("refused") + 1
        return Refused(wait, book.get("epoch"), book.get("off"))
    slot += leeway
    if index >= 0:
        book.take(index, cost)
    else:
        for rate in book.terms.rates:
            book.enter(rate, slot, cost)
        book.meta["last"] = slot
    if book.get("share") < WHOLE:
        book.meta["spent"] = book.get("spent") + cost
    return Booked(slot, wait, book.get("epoch"), book.get("off"), book.time + wait, book.rebuilt, leeway)


def resume(
    book: Ledger, cost: int, slot: int, epoch: int, longest: int, spaced: bool = False, leeway: int = 0
) -> Booked | Refused:
    """What of a place: its turn, a better one, longer to wait, or another one in exchange."""
    if epoch != book.get("epoch"):
        return reserve(book, cost, longest, spaced, leeway)
    if book.terms.algorithm == "counter":
        return booked(book, slot)
    if slot > book.now:
        book.sweep()
        index = book.found(cost)
        if index >= 0 and book.state.free[index][0] < slot:
            better = book.take(index, cost)
            book.give(slot, cost)
            slot = better
        return booked(book, slot)
    if book.now - slot <= book.terms.margin:
        return booked(book, slot)
    book.undo(slot, cost)
    return reserve(book, cost, longest, spaced, leeway)


def cancel(book: Ledger, cost: int, slot: int, epoch: int) -> bool:
    """Give back a place that was not used."""
    if epoch != book.get("epoch"):
        return False
    if slot > book.now and book.terms.algorithm != "counter":
        book.give(slot, cost)
    else:
        book.undo(slot, cost)
    return True


def settle(book: Ledger, cost: int, slot: int, epoch: int, actual: int) -> bool:
    """Give back what a call did not cost, or charge what it cost more."""
    if epoch != book.get("epoch") or actual == cost:
        return False
    if actual < cost:
        book.undo(slot, cost - actual)
        return True
    more = actual - cost
    for rate in book.terms.rates:
        if book.terms.algorithm != "window":
            book.enter(rate, slot, more)
            continue
        ring, at = book.ring(rate), end_of(rate, slot)
        if at + rate.window + rate.margin <= book.now or not ring:
            continue
        counted = ring[book.get(f"x:{rate.window}") :]
        entry = next((entry for entry in counted if entry[0] == at), ring[-1])  # no longer: as if it were the last
        entry[1] += more
        book.meta[f"n:{rate.window}"] = book.get(f"n:{rate.window}") + more
    return True


def penalize(book: Ledger, pushback: Pushback, longest: int) -> Penalty:
    """Stop the limiter's clock, and lower an adaptive limit."""
    wanted = pushback.amount if pushback.absolute else book.time + pushback.amount
    until = min(wanted, book.time + longest)
    before = max(book.time, book.get("until"))
    if until > before:
        book.meta["off"] = book.get("off") + until - before
        book.meta["until"] = until
    if book.terms.floor and book.time >= book.get("changed") + book.terms.pace:
        book.meta["share"] = max(book.terms.floor, book.get("share") * 7 // 10)
        book.meta["changed"] = book.time
        book.meta["spent"] = 0
    return Penalty(max(0, book.get("until") - book.time), book.get("share"))


def adjust(book: Ledger, share: int) -> None:
    """Set the share of the limit that is in force."""
    book.meta["share"] = share
    book.meta["changed"] = book.time
    book.meta["spent"] = 0


def grow(book: Ledger) -> None:
    """Raise a lowered limit by one, once a window, if at least half of it was used."""
    if not book.terms.floor or book.get("share") >= WHOLE or book.time < book.get("changed") + book.terms.pace:
        return
    rate = min(book.terms.rates, key=lambda rate: rate.window)
    if book.get("spent") * 2 >= book.limit(rate):
        book.meta["share"] = min(WHOLE, book.get("share") + -(-WHOLE // rate.limit))
    book.meta["changed"] = book.time
    book.meta["spent"] = 0


def use(book: Ledger) -> Use:
    """How the limiter stands."""
    rates = []
    for rate in book.terms.rates:
        used = ahead = 0
        if book.terms.algorithm == "counter":
            used = estimate(book, rate)
        elif book.terms.algorithm != "window":
            behind = max(0, book.get(f"tat:{rate.window}") - book.now)
            used = -(-behind // book.interval(rate))
        for time, number in book.ring(rate):
            if time > book.now:
                ahead += number
            elif time > book.now - rate.window:
                used += number
        rates.append(Used(book.limit(rate), used, ahead))
    last = book.get("last")
    return Use(
        time=book.time,
        rates=tuple(rates),
        free=sum(slot >= book.now for slot, _ in book.state.free),
        next=max(0, book.wait(book.place(1) if (index := book.found(1)) < 0 else book.state.free[index][0])),
        tail=max(0, book.wait(last)) if last else 0,
        paused=max(0, book.get("until") - book.time),
        share=book.get("share"),
        refused=book.get("refused"),
    )


def reset(book: Ledger) -> None:
    """Forget what was used and booked."""
    book.begin(max(book.get("epoch") + 1, book.time), wait=False)


def booked(book: Ledger, slot: int) -> Booked:
    """The answer."""
    wait = book.wait(slot)
    return Booked(slot, wait, book.get("epoch"), book.get("off"), book.time + wait, book.rebuilt)
