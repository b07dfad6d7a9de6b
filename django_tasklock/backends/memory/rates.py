"""The rate limits of one process."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TypeVar

from django_tasklock.backends.contract.rates import Booked, Penalty, Pushback, RateStore, Refused, Terms, Usage
from django_tasklock.backends.ledger import verbs as ledger_verbs
from django_tasklock.backends.ledger.book import RateBook
from django_tasklock.backends.ledger.state import State
from django_tasklock.backends.memory.store import store

T = TypeVar("T")
PRUNE_EVERY = 512  # operations


class MemoryRates(RateStore):
    """The contract within one process. ``books``: separate books; all objects without these share the same ones."""

    where = "loop"

    def __init__(self, books: dict[str, State] | None = None) -> None:
        self._own = books
        self._own_mutex = None if books is None else threading.RLock()
        self._operations = 0

    @property
    def _mutex(self) -> AbstractContextManager[object]:
        return store.mutex if self._own_mutex is None else self._own_mutex

    @property
    def books(self) -> dict[str, State]:
        """The state of each limiter by its name, in order of last use."""
        return store.rates if self._own is None else self._own

    def run(self, terms: Terms, verb: Callable[[RateBook], T]) -> T:
        """Run ``verb`` on the limiter's book at the current time, and return its result."""
        with self._mutex:
            books, time = self.books, store.clock.now_in_microseconds()
            self._operations += 1
            if self._operations % PRUNE_EVERY == 0:
                for name in [name for name, state in books.items() if state.expires < time]:
                    del books[name]
            state = books.pop(terms.name, None) or State()
            books[terms.name] = state
            book = RateBook(state, terms, time)
            answer = verb(book)
            state.expires, state.terms = book.expires, terms.text()
            return answer

    def reserve(
        self, terms: Terms, cost: int, max_wait: int, spaced: bool = False, will_resume: bool = False
    ) -> Booked | Refused:
        return self.run(terms, lambda book: ledger_verbs.reserve(book, cost, max_wait, spaced, will_resume))

    def resume(
        self, terms: Terms, cost: int, slot: int, edition: int, max_wait: int, spaced: bool = False, leeway: int = 0
    ) -> Booked | Refused:
        return self.run(terms, lambda book: ledger_verbs.resume(book, cost, slot, edition, max_wait, spaced, leeway))

    def exchange(
        self, terms: Terms, cost: int, slots: Sequence[int], edition: int, max_wait: int, leeway: int = 0
    ) -> list[Booked | Refused]:
        return self.run(terms, lambda book: ledger_verbs.exchange(book, cost, slots, edition, max_wait, leeway))

    def cancel(self, terms: Terms, cost: int, slot: int, edition: int) -> bool:
        return self.run(terms, lambda book: ledger_verbs.cancel(book, cost, slot, edition))

    def settle(self, terms: Terms, cost: int, slot: int, edition: int, actual: int) -> bool:
        return self.run(terms, lambda book: ledger_verbs.settle(book, cost, slot, edition, actual))

    def penalize(self, terms: Terms, pushback: Pushback, max_length: int) -> Penalty:
        return self.run(terms, lambda book: ledger_verbs.penalize(book, pushback, max_length))

    def pause(self, terms: Terms, length: int) -> None:
        self.run(terms, lambda book: ledger_verbs.pause(book, length))

    def adjust(self, terms: Terms, share: int) -> None:
        self.run(terms, lambda book: ledger_verbs.adjust(book, share))

    def usage(self, terms: Terms) -> Usage:
        with self._mutex:
            known = self.books.get(terms.name)
            copy = State() if known is None else State(known.to_json())  # the operation must change nothing
            return ledger_verbs.usage(RateBook(copy, terms, store.clock.now_in_microseconds()))

    def reset(self, terms: Terms) -> None:
        self.run(terms, ledger_verbs.reset)

    def names(self, limit: int = 1000) -> list[str]:
        with self._mutex:
            return list(reversed(self.books))[:limit]

    def terms(self, names: Sequence[str]) -> Mapping[str, Terms]:
        with self._mutex:
            found = {name: Terms.from_text(name, self.books[name].terms) for name in names if name in self.books}
            return {name: terms for name, terms in found.items() if terms is not None}
