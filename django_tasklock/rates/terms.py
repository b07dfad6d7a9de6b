"""Agreement on the terms of a limiter: those in the store apply, and a process with others follows them and warns."""

from __future__ import annotations

import logging
import secrets
import threading
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TypeVar

from django_tasklock.backends.contract.rates import (
    REMOVED_ALGORITHM,
    Booked,
    Penalty,
    Pushback,
    RateStore,
    Refused,
    Terms,
    TermsDiffer,
    Use,
)
from django_tasklock.exceptions import TaskLockError
from django_tasklock.rates.server_clock import ServerClock
from django_tasklock.types import monotonic

logger = logging.getLogger("django_tasklock")
T = TypeVar("T")
SAY = 20.0  # seconds after which a process sends its terms again
DIFFERENT = 2.0  # the same while other terms apply
WARN = 60.0  # seconds between two warnings that other terms apply
MOST = 4096  # limiters that one process remembers


class Agreement:
    """The terms of one limiter that apply, and those that this process has configured."""

    def __init__(self, own: Terms) -> None:
        self.own = own
        self.terms = own
        """The terms that apply."""
        self.due = float("-inf")
        """When this process must vote for its own terms again, for bookings and for polls of waiting callers."""
        self.warned = float("-inf")
        self._turn = threading.Lock()

    def take_turn(self) -> bool:
        """Tell whether to send this process's terms again. Of several callers at once one gets True."""
        now = monotonic()
        if now < self.due:
            return False
        with self._turn:
            if now < self.due:
                return False
            self.due = now + SAY
        return True

    def hear(self, rule: str) -> None:
        """Record the terms that apply, and warn if they differ from this process's own."""
        if rule == self.own.rule():
            self.terms = self.own
            return
        terms = self.own.under(rule)
        if terms.rule() != rule:
            text = f"the terms {rule!r} that are in force cannot be read: they are of another version of this package"
            raise TaskLockError(text, name=self.own.name)
        self.terms = terms
        now = monotonic()
        self.due = min(self.due, now + DIFFERENT)
        if now - self.warned >= WARN:
            self.warned = now
            logger.warning(
                "rate limit %r: this process has the terms %s, but %s are in force, also for this process; give all"
                " processes the same terms, and restart those that have others",
                self.own.name,
                terms_in_words(self.own),
                terms_in_words(self.terms),
            )

    def check_cost(self, cost: int) -> None:
        """Raise ``TaskLockError`` for a cost that exceeds the terms that apply."""
        for rate in self.terms.rates:
            most = self.terms.capacity(rate)
            if cost > most:
                text = f"a cost of {cost} does not fit into the limit {rate} of {self.terms.name!r} that is in force"
                raise TaskLockError(text, name=self.terms.name)


def terms_in_words(terms: Terms) -> str:
    """Return the terms as text for logs."""
    algorithm = f"{REMOVED_ALGORITHM}, served as {terms.algorithm}" if terms.rule_in_store else terms.algorithm
    return f"{', '.join(map(str, terms.rates))} ({algorithm}, margin {terms.margin / 1_000_000:g} s)"


class AgreedRates(RateStore):
    """The rate limits of another store, by the terms that apply. ``process``: this process's name in the store."""

    def __init__(self, store: RateStore, process: str = "") -> None:
        self.store = store
        self.clock = ServerClock()
        """The estimate of the store's clock."""
        self._process = process
        self._agreements: OrderedDict[Terms, Agreement] = OrderedDict()

    def _of(self, terms: Terms) -> Agreement:
        found = self._agreements.get(terms)
        if found is None:
            found = self._agreements.setdefault(terms, Agreement(terms))
            if len(self._agreements) > MOST:
                self._agreements.popitem(last=False)
        return found

    def in_force(self, terms: Terms) -> Terms:
        found = self._agreements.get(terms)
        return terms if found is None else found.terms

    def _by(self, terms: Terms, cost: int, verb: Callable[[Terms], T], says: bool = False) -> T:
        agreement = self._of(terms)
        if says and agreement.take_turn():
            agreement.hear(self.store.agree(terms, self._process or process()))
        while True:
            try:
                agreement.check_cost(cost)
                return verb(agreement.terms)
            except TermsDiffer as error:
                agreement.hear(error.rule)

    async def _aby(self, terms: Terms, cost: int, verb: Callable[[Terms], Awaitable[T]], says: bool = False) -> T:
        agreement = self._of(terms)
        if says and agreement.take_turn():
            agreement.hear(await self.store.aagree(terms, self._process or process()))
        while True:
            try:
                agreement.check_cost(cost)
                return await verb(agreement.terms)
            except TermsDiffer as error:
                agreement.hear(error.rule)

    def agree(self, terms: Terms, process: str) -> str:
        return self.store.agree(terms, process)

    def forget(self) -> None:
        """Forget the agreements and the estimate of the store's clock."""
        self._agreements.clear()
        self.clock.forget()

    def reserve(
        self, terms: Terms, cost: int, longest: int, spaced: bool = False, asks: bool = False
    ) -> Booked | Refused:
        agreement = self._agreements.get(terms)
        if agreement is not None and agreement.terms is agreement.own and monotonic() < agreement.due:  # most calls
            try:
                return self.store.reserve(terms, cost, longest, spaced, asks)
            except TermsDiffer as error:
                agreement.hear(error.rule)
        return self._by(terms, cost, lambda held: self.store.reserve(held, cost, longest, spaced, asks), says=True)

    def reserve_many(self, terms: Terms, cost: int, longest: int, number: int) -> list[Booked | Refused]:
        return self._by(terms, cost, lambda held: self.store.reserve_many(held, cost, longest, number), says=True)

    def resume(
        self, terms: Terms, cost: int, slot: int, edition: int, longest: int, spaced: bool = False, leeway: int = 0
    ) -> Booked | Refused:
        return self._by(
            terms, cost, lambda held: self.store.resume(held, cost, slot, edition, longest, spaced, leeway), says=True
        )

    def exchange(
        self, terms: Terms, cost: int, slots: Sequence[int], edition: int, longest: int, leeway: int = 0
    ) -> list[Booked | Refused]:
        return self._by(terms, cost, lambda held: self.store.exchange(held, cost, slots, edition, longest, leeway))

    def cancel(self, terms: Terms, cost: int, slot: int, edition: int) -> bool:
        return self.store.cancel(self.in_force(terms), cost, slot, edition)

    def settle(self, terms: Terms, cost: int, slot: int, edition: int, actual: int) -> bool:
        return self.store.settle(self.in_force(terms), cost, slot, edition, actual)

    def penalize(self, terms: Terms, pushback: Pushback, longest: int) -> Penalty:
        return self.store.penalize(self.in_force(terms), pushback, longest)

    def pause(self, terms: Terms, length: int) -> None:
        self.store.pause(self.in_force(terms), length)

    def adjust(self, terms: Terms, share: int) -> None:
        self.store.adjust(self.in_force(terms), share)

    def use(self, terms: Terms) -> Use:
        return self.store.use(self.in_force(terms))

    def reset(self, terms: Terms) -> None:
        self.store.reset(self.in_force(terms))

    def names(self, limit: int = 1000) -> list[str]:
        return self.store.names(limit)

    def terms(self, names: Sequence[str]) -> Mapping[str, Terms]:
        return self.store.terms(names)

    async def areserve(self, terms: Terms, cost: int, longest: int, asks: bool = False) -> Booked | Refused:
        return await self._aby(terms, cost, lambda held: self.store.areserve(held, cost, longest, asks), says=True)

    async def aresume(
        self, terms: Terms, cost: int, slot: int, edition: int, longest: int, leeway: int = 0
    ) -> Booked | Refused:
        return await self._aby(
            terms, cost, lambda held: self.store.aresume(held, cost, slot, edition, longest, leeway), says=True
        )

    async def aexchange(
        self, terms: Terms, cost: int, slots: Sequence[int], edition: int, longest: int, leeway: int = 0
    ) -> list[Booked | Refused]:
        return await self._aby(
            terms, cost, lambda held: self.store.aexchange(held, cost, slots, edition, longest, leeway)
        )

    async def acancel(self, terms: Terms, cost: int, slot: int, edition: int) -> bool:
        return await self.store.acancel(self.in_force(terms), cost, slot, edition)

    async def asettle(self, terms: Terms, cost: int, slot: int, edition: int, actual: int) -> bool:
        return await self.store.asettle(self.in_force(terms), cost, slot, edition, actual)

    async def apenalize(self, terms: Terms, pushback: Pushback, longest: int) -> Penalty:
        return await self.store.apenalize(self.in_force(terms), pushback, longest)

    async def ause(self, terms: Terms) -> Use:
        return await self.store.ause(self.in_force(terms))

    async def areset(self, terms: Terms) -> None:
        await self.store.areset(self.in_force(terms))


_processes: list[str] = []
_agreed: dict[int, AgreedRates] = {}  # by the id of the store


def process() -> str:
    """Return the name of this process in stores."""
    if not _processes:
        _processes.append(secrets.token_hex(8))
    return _processes[0]


def agreed(store: RateStore) -> AgreedRates:
    """Return the ``AgreedRates`` of a store in this process."""
    found = _agreed.get(id(store))
    if found is None:
        for other in {*_agreed} - {id(store)}:
            _agreed.pop(other, None)
        found = _agreed.setdefault(id(store), AgreedRates(store))  # atomic: threads may come here at once
    return found


def forget() -> None:
    """Forget all agreements of this process, and its name."""
    _processes.clear()
    for found in [*_agreed.values()]:
        found.forget()


def after_fork() -> None:
    """Forget the parent's agreements and name: the child is a process of its own."""
    forget()
