"""The algorithm ``counter``: units of this window and of the one before, as if those had been spread evenly over it."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from django_tasklock.backends.contract.rates import Rate

if TYPE_CHECKING:
    from django_tasklock.backends.ledger.book import Ledger

__all__ = ["count", "estimate", "excess", "uncount"]


def turn(book: Ledger, rate: Rate) -> None:
    """Begin the next window, if it is time."""
    key, number = rate.window, book.now // rate.window
    ago = number - book.get(f"k:{key}")
    if ago:
        book.meta[f"p:{key}"] = book.get(f"c:{key}") if ago == 1 else 0
        book.meta[f"c:{key}"] = 0
        book.meta[f"k:{key}"] = number


def count(book: Ledger, rate: Rate, units: int) -> None:
    """Book."""
    turn(book, rate)
    book.meta[f"c:{rate.window}"] = book.get(f"c:{rate.window}") + units


def uncount(book: Ledger, rate: Rate, slot: int, units: int) -> None:
    """Undo what was booked in this window."""
    turn(book, rate)
    if slot // rate.window == book.get(f"k:{rate.window}"):
        book.meta[f"c:{rate.window}"] = max(0, book.get(f"c:{rate.window}") - units)


def estimate(book: Ledger, rate: Rate) -> int:
    """Units in the window that ends now, about."""
    turn(book, rate)
    past = book.now % rate.window
    return book.get(f"c:{rate.window}") + int(book.get(f"p:{rate.window}") * ((rate.window - past) / rate.window))


def excess(book: Ledger, rate: Rate, units: int) -> int:
    """How long until the estimate leaves room for so many units; 0: it does."""
    turn(book, rate)
    key, limit, window = rate.window, book.limit(rate), rate.window
    current, previous = book.get(f"c:{key}"), book.get(f"p:{key}")
    past = book.now % window
    if current + units + previous * ((window - past) / window) <= limit:
        return 0
    if current + units <= limit:
        return max(1, math.ceil(window - (limit - current - units) * (window / previous)) - past)
    further = math.ceil(window - max(0, limit - units) * (window / current)) if current else 0
    return window - past + max(0, further)
