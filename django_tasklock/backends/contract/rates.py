"""What a store must promise of rate limits. Times are whole microseconds.

A limiter has a clock of its own: the store's, less the time it was stopped by ``penalize``.
Places (``slot``) are times on it. Every verb is one round trip where the store can do it in
one, reads the store's clock and never the caller's, and raises ``BackendUnavailable`` when
the store could not be asked; what books raises ``TermsDiffer`` where the store has other
terms in force; and nothing else. What gives a place back is never sent twice:
it could hand out somebody else's place.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from asgiref.sync import sync_to_async

from django_tasklock.rates.notation import Pushback, Terms

__all__ = ["Booked", "Penalty", "RateStore", "Refused", "TermsDiffer", "Use", "Used"]


class TermsDiffer(Exception):
    """Nothing was booked: other terms are in force. ``rule``: those, as ``Terms.rule()`` has them."""

    def __init__(self, rule: str) -> None:
        super().__init__(rule)
        self.rule = rule


class Booked(NamedTuple):
    """A place. ``wait``: microseconds from the answer's making; negative: it was that long ago."""

    slot: int
    wait: int
    epoch: int
    pause: int
    """How long the limiter's clock has been stopped so far: more of it means that sleepers sleep longer."""
    time: int
    """When it is its turn, by the store's clock, since 1970."""
    rebuilt: bool = False
    """The store's clock had been set back by more than the horizon; all bookings were dropped."""
    leeway: int = 0
    """How much later than the margin allows it may be used: it was booked for its end."""
    asks: bool = False
    """It stands in line: whoever has it asks again before going, and may get the one before it or behind it."""


class Refused(NamedTuple):
    """Nothing was booked. ``wait``: how long it would have taken."""

    wait: int
    epoch: int
    pause: int


class Penalty(NamedTuple):
    """What a pushback did: how long the limiter stands still from now, and its share of the limit, in millionths."""

    wait: int
    share: int


class Used(NamedTuple):
    """One rate of a limiter: its limit now, units used in the window that ends now, units booked ahead."""

    limit: int
    used: int
    ahead: int


class Use(NamedTuple):
    """How a limiter stands. ``time``: the store's, since 1970; waits are from then on."""

    time: int
    rates: tuple[Used, ...]
    free: int
    """Places given back that nobody has taken yet."""
    next: int
    """How long a call of cost one would wait."""
    tail: int
    """How long until the last place that is booked."""
    paused: int
    share: int
    refused: int
    """Calls refused since the limiter was made or reset."""


class RateStore(ABC):
    """Rate limits of one store."""

    @abstractmethod
    def reserve(
        self, terms: Terms, cost: int, longest: int, spaced: bool = False, asks: bool = False
    ) -> Booked | Refused:
        """Book the first place for ``cost`` units, at most ``longest`` from now. Never waits.

        ``spaced``: who has to wait is spread evenly over the window, in place of all at its beginning.
        ``asks``: whoever has it will ask again before going, if that is later than in a second.
        """

    @abstractmethod
    def resume(
        self, terms: Terms, cost: int, slot: int, epoch: int, longest: int, spaced: bool = False, leeway: int = 0
    ) -> Booked | Refused:
        """What of a place: its turn, longer to wait, or, missed or of an earlier epoch, another one in exchange.

        ``leeway``: that one may be used so much later, and those behind it wait as much longer.
        """

    @abstractmethod
    def exchange(
        self, terms: Terms, cost: int, slots: Sequence[int], epoch: int, longest: int, leeway: int = 0
    ) -> list[Booked | Refused]:
        """``resume`` of some places that were missed, at once. Fewer answers: the others are to be resumed."""

    @abstractmethod
    def cancel(self, terms: Terms, cost: int, slot: int, epoch: int) -> bool:
        """Give back a place that was not used. False: there was nothing left to give back."""

    @abstractmethod
    def settle(self, terms: Terms, cost: int, slot: int, epoch: int, actual: int) -> bool:
        """The call cost ``actual`` and not ``cost``. False: too late to matter."""

    @abstractmethod
    def penalize(self, terms: Terms, pushback: Pushback, longest: int) -> Penalty:
        """Stop the limiter's clock, for ``longest`` at most; never shortens a stop."""

    @abstractmethod
    def adjust(self, terms: Terms, share: int) -> None:
        """Set the share of the limit that is in force, in millionths."""

    @abstractmethod
    def use(self, terms: Terms) -> Use:
        """How the limiter stands. Changes nothing."""

    @abstractmethod
    def reset(self, terms: Terms) -> None:
        """Forget what was used and booked, stops and share too; who sleeps books again."""

    @abstractmethod
    def names(self, limit: int = 1000) -> list[str]:
        """Limiters that were used lately, the latest first. From an index."""

    @abstractmethod
    def terms(self, names: Sequence[str]) -> Mapping[str, Terms]:
        """The terms that whoever used these limiters last had; those of which nothing is stored are left out."""

    @abstractmethod
    def agree(self, terms: Terms, process: str) -> str:
        """Say that this process has these terms; those in force, as ``Terms.rule()``.

        In force stays what is, until more processes have said within the last minute that they have these terms than
        have said so of those in force. Then what is booked for later than in a second is dropped, as by ``reset``.
        """

    def in_force(self, terms: Terms) -> Terms:
        """The terms by which whoever has these is served."""
        return terms

    async def aagree(self, terms: Terms, process: str) -> str:
        """``agree`` for coroutines."""
        return await sync_to_async(self.agree)(terms, process)

    def reserve_many(self, terms: Terms, cost: int, longest: int, number: int) -> list[Booked | Refused]:
        """``reserve`` so often, spaced, up to the first that is refused."""
        answers: list[Booked | Refused] = []
        while len(answers) < number and not (answers and isinstance(answers[-1], Refused)):
            answers.append(self.reserve(terms, cost, longest, spaced=True, asks=True))
        return answers

    async def areserve(self, terms: Terms, cost: int, longest: int, asks: bool = False) -> Booked | Refused:
        """``reserve`` for coroutines. A cancelled one gives back what it is granted."""
        return await sync_to_async(self.reserve)(terms, cost, longest, asks=asks)

    async def aresume(
        self, terms: Terms, cost: int, slot: int, epoch: int, longest: int, leeway: int = 0
    ) -> Booked | Refused:
        """``resume`` for coroutines."""
        return await sync_to_async(self.resume)(terms, cost, slot, epoch, longest, leeway=leeway)

    async def aexchange(
        self, terms: Terms, cost: int, slots: Sequence[int], epoch: int, longest: int, leeway: int = 0
    ) -> list[Booked | Refused]:
        """``exchange`` for coroutines."""
        return await sync_to_async(self.exchange)(terms, cost, slots, epoch, longest, leeway)

    async def acancel(self, terms: Terms, cost: int, slot: int, epoch: int) -> bool:
        """``cancel`` for coroutines."""
        return await sync_to_async(self.cancel)(terms, cost, slot, epoch)

    async def asettle(self, terms: Terms, cost: int, slot: int, epoch: int, actual: int) -> bool:
        """``settle`` for coroutines."""
        return await sync_to_async(self.settle)(terms, cost, slot, epoch, actual)

    async def apenalize(self, terms: Terms, pushback: Pushback, longest: int) -> Penalty:
        """``penalize`` for coroutines."""
        return await sync_to_async(self.penalize)(terms, pushback, longest)

    async def ause(self, terms: Terms) -> Use:
        """``use`` for coroutines."""
        return await sync_to_async(self.use)(terms)

    async def areset(self, terms: Terms) -> None:
        """``reset`` for coroutines."""
        await sync_to_async(self.reset)(terms)
