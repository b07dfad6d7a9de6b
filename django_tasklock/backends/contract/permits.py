"""What a store must promise of permits: of one name, ``AcquireRequest.limit`` tokens may hold one at once.

Whoever has one is a *member*, under a token and a lease of its own: a set of tokens can tell
who left without a word, and a counter cannot. The limit is the caller's and is not stored: a
caller is granted a permit if fewer than *its* limit are taken.
"""

from __future__ import annotations

from abc import abstractmethod

from django_tasklock.backends.contract.leases import LeaseStore
from django_tasklock.backends.contract.queries import Queued
from django_tasklock.types import Record


class Permits(LeaseStore):
    """The permits of a store. ``Busy.record`` is the member whose lease ends first, ``None`` if others merely wait.

    A release never finds another's: ``Released.NOT_YOURS`` is not among its answers.
    """

    noun = "limiter"

    @abstractmethod
    def members(self, name: str) -> list[Record]:
        """Return who has a permit now, the one that has it longest first."""

    def waiters(self, name: str, limit: int = 100) -> Queued:
        """Return who waits for a permit in the store's queue, the longest first. Nobody where waiters poll."""
        return Queued([], 0)

    @abstractmethod
    def remove(self, name: str, token: str) -> Record | None:
        """Take the permit away from ``token``; what was removed."""

    @abstractmethod
    def names(self, limit: int = 1000) -> list[str]:
        """Return the limiters that somebody has a permit of, up to ``limit``, in no order."""

    def mine(self, name: str, token: str) -> Record | None:
        return next((record for record in self.members(name) if record.token == token), None)

    async def amembers(self, name: str) -> list[Record]:
        """Do what ``members`` does, for coroutines."""
        return await self.in_thread(self.members, name)

    async def amine(self, name: str, token: str) -> Record | None:
        return next((record for record in await self.amembers(name) if record.token == token), None)
