"""The contract of a store of permits: up to ``AcquireRequest.limit`` tokens hold a permit of one name at once.

A holder of a permit is a *member*, with a token and a lease of its own: from a set of tokens
the members that crashed can be removed, from a counter they cannot. The limit is the caller's
and is not stored: a caller is granted a permit if fewer than *its* limit are taken.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence

from django_tasklock.backends.contract.leases import LeaseStore, Queued
from django_tasklock.types import Record


class Permits(LeaseStore):
    """The permits of a store. ``Busy.record`` is the member whose lease ends first; ``None`` if no permit is taken and
    the free ones are reserved for earlier waiters.

    A release never returns ``Released.NOT_YOURS``: each token has a permit of its own.
    """

    noun = "limiter"

    @abstractmethod
    def members(self, name: str) -> list[Record]:
        """Return the current members, the oldest first."""

    def members_of(self, names: Sequence[str]) -> list[list[Record]]:
        """Return the current members of several limiters. A store that can reads them in one step."""
        return [self.members(name) for name in names]

    def waiters(self, name: str, limit: int = 100) -> Queued:
        """Return the waiters in the store's queue for a permit, the longest first; none where waiters poll."""
        return Queued([], 0)

    @abstractmethod
    def remove(self, name: str, token: str) -> Record | None:
        """Take the permit away from ``token``; return the removed record."""

    @abstractmethod
    def names(self, limit: int = 1000) -> list[str]:
        """Return the names of up to ``limit`` limiters that have members, in no order."""

    def get_held(self, name: str, token: str) -> Record | None:
        return next((record for record in self.members(name) if record.token == token), None)

    async def amembers(self, name: str) -> list[Record]:
        """Do what ``members`` does, for coroutines."""
        return await self.in_thread(self.members, name)

    async def aget_held(self, name: str, token: str) -> Record | None:
        return next((record for record in await self.amembers(name) if record.token == token), None)
