"""The terms of limiters: those in force in the store apply, and a process with others follows them and warns."""

from __future__ import annotations

import logging
import secrets
import threading
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TypeVar

from django_tasklock.backends.contract.rates import (
    Booked,
    Penalty,
    Pushback,
    RateStore,
    Refused,
    Terms,
    TermsDiffer,
    Usage,
)
from django_tasklock.exceptions import TaskLockError
from django_tasklock.rates.server_clock import ServerClock
from django_tasklock.types import monotonic

logger = logging.getLogger("django_tasklock")
T = TypeVar("T")
VOTE_EVERY = 20.0  # seconds after which a process votes for its terms again
VOTE_EVERY_IF_DIFFERENT = 2.0  # the same while other terms apply
WARN_EVERY = 60.0  # seconds between two warnings that other terms apply
MAX_LIMITERS = 4096  # limiters that one process remembers


class LimiterTerms:
    """The terms of one limiter: those in force, and those that this process has configured."""

    def __init__(self, configured: Terms) -> None:
        self.configured = configured
        self.in_force = configured
        """The terms that apply."""
        self.vote_due = float("-inf")
        """When the process votes for its own terms again: with a booking, or when a caller that sleeps resumes."""
        self.warned_at = float("-inf")
        self._lock = threading.Lock()

    def begin_due_vote(self) -> bool:
        """Tell whether to vote for this process's terms again. Of several callers at once one gets True."""
        now = monotonic()
        if now < self.vote_due:
            return False
        with self._lock:
            if now < self.vote_due:
                return False
            self.vote_due = now + VOTE_EVERY
        return True

    def apply_rule(self, rule: str) -> None:
        """Record the terms that apply, and warn if they differ from this process's own."""
        if rule == self.configured.rule():
            self.in_force = self.configured
            return
        terms = self.configured.with_rule(rule)
        if terms.rule() != rule:
            text = f"the terms {rule!r} that are in force cannot be read: they are of another version of this package"
            raise TaskLockError(text, name=self.configured.name)
        self.in_force = terms
        now = monotonic()
        self.vote_due = min(self.vote_due, now + VOTE_EVERY_IF_DIFFERENT)
        if now - self.warned_at >= WARN_EVERY:
            self.warned_at = now
            logger.warning(
                "rate limit %r: this process has the terms %s, but %s are in force, also for this process; give all"
                " processes the same terms, and restart those that have others",
                self.configured.name,
                describe_terms(self.configured),
                describe_terms(self.in_force),
            )

    def check_cost(self, cost: int) -> None:
        """Raise ``TaskLockError`` for a cost that exceeds the terms that apply."""
        for rate in self.in_force.rates:
            most = self.in_force.capacity(rate)
            if cost > most:
                text = f"a cost of {cost} does not fit into the limit {rate} of {self.in_force.name!r} that is in force"
                raise TaskLockError(text, name=self.in_force.name)


def describe_terms(terms: Terms) -> str:
    """Return the terms as text for logs."""
    return f"{', '.join(map(str, terms.rates))} ({terms.algorithm}, margin {terms.margin / 1_000_000:g} s)"


class RatesInForce(RateStore):
    """The rate limits of another store, by the terms in force. ``process``: this process's name in the store."""

    def __init__(self, store: RateStore, process: str = "") -> None:
        self.store = store
        self.clock = ServerClock()
        """The estimate of the store's clock."""
        self._process = process
        self._terms: OrderedDict[Terms, LimiterTerms] = OrderedDict()

    def _terms_of(self, terms: Terms) -> LimiterTerms:
        found = self._terms.get(terms)
        if found is None:
            found = self._terms.setdefault(terms, LimiterTerms(terms))
            if len(self._terms) > MAX_LIMITERS:
                self._terms.popitem(last=False)
        return found

    def in_force(self, terms: Terms) -> Terms:
        found = self._terms.get(terms)
        return terms if found is None else found.in_force

    def _call(self, terms: Terms, cost: int, verb: Callable[[Terms], T], votes: bool = False) -> T:
        known = self._terms_of(terms)
        if votes and known.begin_due_vote():
            known.apply_rule(self.store.vote(terms, self._process or process_name()))
        while True:
            try:
                known.check_cost(cost)
                return verb(known.in_force)
            except TermsDiffer as error:
                known.apply_rule(error.rule)

    async def _acall(self, terms: Terms, cost: int, verb: Callable[[Terms], Awaitable[T]], votes: bool = False) -> T:
        known = self._terms_of(terms)
        if votes and known.begin_due_vote():
            known.apply_rule(await self.store.avote(terms, self._process or process_name()))
        while True:
            try:
                known.check_cost(cost)
                return await verb(known.in_force)
            except TermsDiffer as error:
                known.apply_rule(error.rule)

    def vote(self, terms: Terms, process: str) -> str:
        return self.store.vote(terms, process)

    def forget(self) -> None:
        """Forget the terms in force and the estimate of the store's clock."""
        self._terms.clear()
        self.clock.forget()

    def reserve(
        self, terms: Terms, cost: int, max_wait: int, spaced: bool = False, will_resume: bool = False
    ) -> Booked | Refused:
        known = self._terms.get(terms)
        if known is not None and known.in_force is known.configured and monotonic() < known.vote_due:  # most calls
            try:
                return self.store.reserve(terms, cost, max_wait, spaced, will_resume)
            except TermsDiffer as error:
                known.apply_rule(error.rule)
        return self._call(
            terms, cost, lambda in_force: self.store.reserve(in_force, cost, max_wait, spaced, will_resume), votes=True
        )

    def reserve_many(self, terms: Terms, cost: int, max_wait: int, number: int) -> list[Booked | Refused]:
        return self._call(
            terms, cost, lambda in_force: self.store.reserve_many(in_force, cost, max_wait, number), votes=True
        )

    def resume(
        self, terms: Terms, cost: int, slot: int, edition: int, max_wait: int, spaced: bool = False, leeway: int = 0
    ) -> Booked | Refused:
        return self._call(
            terms,
            cost,
            lambda in_force: self.store.resume(in_force, cost, slot, edition, max_wait, spaced, leeway),
            votes=True,
        )

    def exchange(
        self, terms: Terms, cost: int, slots: Sequence[int], edition: int, max_wait: int, leeway: int = 0
    ) -> list[Booked | Refused]:
        return self._call(
            terms, cost, lambda in_force: self.store.exchange(in_force, cost, slots, edition, max_wait, leeway)
        )

    def cancel(self, terms: Terms, cost: int, slot: int, edition: int) -> bool:
        return self.store.cancel(self.in_force(terms), cost, slot, edition)

    def settle(self, terms: Terms, cost: int, slot: int, edition: int, actual: int) -> bool:
        return self.store.settle(self.in_force(terms), cost, slot, edition, actual)

    def penalize(self, terms: Terms, pushback: Pushback, max_length: int) -> Penalty:
        return self.store.penalize(self.in_force(terms), pushback, max_length)

    def pause(self, terms: Terms, length: int) -> None:
        self.store.pause(self.in_force(terms), length)

    def adjust(self, terms: Terms, share: int) -> None:
        self.store.adjust(self.in_force(terms), share)

    def usage(self, terms: Terms) -> Usage:
        return self.store.usage(self.in_force(terms))

    def reset(self, terms: Terms) -> None:
        self.store.reset(self.in_force(terms))

    def names(self, limit: int = 1000) -> list[str]:
        return self.store.names(limit)

    def terms(self, names: Sequence[str]) -> Mapping[str, Terms]:
        return self.store.terms(names)

    async def areserve(self, terms: Terms, cost: int, max_wait: int, will_resume: bool = False) -> Booked | Refused:
        return await self._acall(
            terms, cost, lambda in_force: self.store.areserve(in_force, cost, max_wait, will_resume), votes=True
        )

    async def aresume(
        self, terms: Terms, cost: int, slot: int, edition: int, max_wait: int, leeway: int = 0
    ) -> Booked | Refused:
        return await self._acall(
            terms,
            cost,
            lambda in_force: self.store.aresume(in_force, cost, slot, edition, max_wait, leeway),
            votes=True,
        )

    async def aexchange(
        self, terms: Terms, cost: int, slots: Sequence[int], edition: int, max_wait: int, leeway: int = 0
    ) -> list[Booked | Refused]:
        return await self._acall(
            terms, cost, lambda in_force: self.store.aexchange(in_force, cost, slots, edition, max_wait, leeway)
        )

    async def acancel(self, terms: Terms, cost: int, slot: int, edition: int) -> bool:
        return await self.store.acancel(self.in_force(terms), cost, slot, edition)

    async def asettle(self, terms: Terms, cost: int, slot: int, edition: int, actual: int) -> bool:
        return await self.store.asettle(self.in_force(terms), cost, slot, edition, actual)

    async def apenalize(self, terms: Terms, pushback: Pushback, max_length: int) -> Penalty:
        return await self.store.apenalize(self.in_force(terms), pushback, max_length)

    async def ausage(self, terms: Terms) -> Usage:
        return await self.store.ausage(self.in_force(terms))

    async def areset(self, terms: Terms) -> None:
        await self.store.areset(self.in_force(terms))


_process_names: list[str] = []
_by_store: dict[int, RatesInForce] = {}  # the key is the id of the store


def process_name() -> str:
    """Return the name of this process in stores."""
    if not _process_names:
        _process_names.append(secrets.token_hex(8))
    return _process_names[0]


def rates_in_force(store: RateStore) -> RatesInForce:
    """Return the ``RatesInForce`` of a store in this process."""
    found = _by_store.get(id(store))
    if found is None:
        for other in {*_by_store} - {id(store)}:
            _by_store.pop(other, None)
        found = _by_store.setdefault(id(store), RatesInForce(store))  # atomic: threads may come here at once
    return found


def forget() -> None:
    """Forget all terms in force, and the name of this process."""
    _process_names.clear()
    for found in [*_by_store.values()]:
        found.forget()


def after_fork() -> None:
    """Forget the parent's terms in force and its name: the child is a process of its own."""
    forget()
