"""Leases of several locks: the operations of a holder, on one lock after the other in the order of their names.

Nobody holds one of the locks while waiting for another: if one is busy, the others are given back. So waiters cannot
deadlock. They poll.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from django_tasklock.backends.contract.stores import LeaseStore
from django_tasklock.exceptions import BackendUnavailable
from django_tasklock.names import each_of
from django_tasklock.types import AcquireRequest, Busy, Ending, Grant, Record, Released, Renewal, RenewalResult

if TYPE_CHECKING:
    from django_tasklock.backends.contract.stores import LockStore

T = TypeVar("T")
CHUNK = 100  # leases that a store renews in one request
WORST_FIRST = (RenewalResult.LOST, RenewalResult.UNKNOWN, RenewalResult.ASKED, RenewalResult.RENEWED)


class Several(LeaseStore):
    """The locks of a store, addressed by several names at once (``names.Names``)."""

    def __init__(self, store: LockStore) -> None:
        self.store = store

    def acquire(self, request: AcquireRequest) -> Grant | Busy:
        """Take all locks with one token, or none of them: ``Busy.name`` is the one that another holder has.

        Locks that the token holds already count as taken, and are released with the others if one is busy. The fence is
        the greatest of all. For a moment some locks may be busy although no caller gets them all.
        """
        names = each_of(request.name)
        fence = expired = 0
        try:
            for name in names:
                answer = self.store.acquire(request._replace(name=name))
                expired += answer.expired
                if isinstance(answer, Busy):
                    for other in names:
                        if other != name:
                            self.store.release(other, request.token)
                    return answer._replace(name=name, expired=expired)
                fence = max(fence, answer.fence)
        except BackendUnavailable as error:
            error.doubt |= fence > 0
            raise
        return Grant(fence, request.ttl_ms, expired)

    def release(self, name: str, token: str) -> Released:
        """Release all locks; return the outcome of the first that ``token`` did not hold any more, if any."""
        outcomes = [self.store.release(one, token) for one in each_of(name)]
        return next((outcome for outcome in outcomes if not outcome), Released.RELEASED)

    def release_and_mark(self, name: str, token: str, mark: str, ttl: int, *, clear: bool) -> Ending:
        """Do what the store's verb does; what is parked has one name, so there is no flag to clear."""
        if mark:
            self.store.tally(mark, ttl=ttl)
        return Ending(self.release(name, token), None, bool(mark))

    def extend(self, name: str, token: str, ttl: int, hold: int) -> bool:
        return all(self.store.extend(one, token, ttl, hold) for one in each_of(name))

    def renew(self, batch: Sequence[Renewal]) -> list[RenewalResult]:
        each = [item._replace(name=name) for item in batch for name in each_of(item.name)]
        found: list[RenewalResult] = []
        for start in range(0, len(each), CHUNK):
            found += self.store.renew(each[start : start + CHUNK])
        results = iter(found)
        return [min((next(results) for _ in each_of(item.name)), key=WORST_FIRST.index) for item in batch]

    def get_held(self, name: str, token: str) -> Record | None:
        """Return the record of a lock that is lost, else of one whose release is requested, else of any."""
        found: list[Record] = []
        for one in each_of(name):
            record = self.store.get(one)
            if record is None or record.token != token:
                return record
            found.append(record)
        return max(found, key=lambda record: record.asked)

    @property
    def database(self) -> str | None:
        return self.store.database

    def close_idle(self) -> None:
        self.store.close_idle()

    async def in_thread(self, verb: Callable[..., T], *args: Any, undo: Callable[[], object] | None = None) -> T:
        return await self.store.in_thread(verb, *args, undo=undo)
