"""What a store must promise. A backend owns atomicity and nothing else.

It knows names, tokens and milliseconds; it does not know what a task, a guard or a
policy is. Names come in without the key prefix. Every verb

* is one round trip where the store can do it in one,
* judges time by the store's clock, never by the caller's,
* raises ``BackendUnavailable`` when the store could not be asked, and nothing else,
* is safe to repeat with the same token, because a reply can be lost.
"""

from __future__ import annotations

import threading
import time
from abc import abstractmethod
from collections.abc import Sequence
from functools import cached_property, partial

from django_tasklock.backends.contract.leases import LeaseStore
from django_tasklock.backends.contract.metrics import Metrics
from django_tasklock.backends.contract.permits import Permits
from django_tasklock.backends.contract.queries import Counts, NotedWait, Page, Pruned, Query, Queued
from django_tasklock.backends.contract.rates import RateStore
from django_tasklock.backends.contract.several import Several, first_failed
from django_tasklock.exceptions import BackendUnavailable, TaskLockError
from django_tasklock.types import AcquireRequest, Busy, Condition, Grant, InstanceState, Record, Released

_tickets = threading.Lock()
_last_ticket = 0


class LockStore(LeaseStore):
    """A store of locks. One object per process, shared by its threads, made anew after a fork."""

    across_processes: bool = True
    """False: only this process sees the locks."""
    lines: bool = False
    """True: who drew a ticket for a name with ``ticket()`` is known until it has ``arrived()``."""
    orders: int | None = None
    """How many locks ``page()`` puts in order by age or time left among themselves, where that is not all of them."""

    @cached_property
    def permits(self) -> Permits:
        """Its permits, for concurrency limiters. ``TaskLockError`` where the store cannot count them."""
        raise TaskLockError(
            f"{type(self).__name__} has no permits: a concurrency limiter needs Redis or the database:"
            " point TASKLOCK['LOCATION'] at Redis, or set TASKLOCK['BACKEND'] to the database backend"
        )

    @cached_property
    def rates(self) -> RateStore:
        """Its rate limits. ``TaskLockError`` where the store keeps none."""
        raise TaskLockError(
            f"{type(self).__name__} keeps no rate limits: point TASKLOCK['LOCATION'] at Redis,"
            " or set TASKLOCK['BACKEND'] to the database backend"
        )

    @cached_property
    def metrics(self) -> Metrics:
        """What it has counted. ``TaskLockError`` where the store counts nothing."""
        raise TaskLockError(
            f"{type(self).__name__} counts nothing: a cache has no verb that counts and locks at once;"
            " point TASKLOCK['LOCATION'] at Redis, or set TASKLOCK['BACKEND'] to the database backend"
        )

    @abstractmethod
    def get(self, name: str) -> Record | None:
        """Return who holds ``name`` now; ``None`` if nobody does."""

    def mine(self, name: str, token: str) -> Record | None:
        return self.get(name)

    async def amine(self, name: str, token: str) -> Record | None:
        return await self.aget(name)

    def records(self, *, expired: bool = False, limit: int = 1000, offset: int = 0) -> list[Record]:
        """Return held locks in order of expiry, from an index. ``expired``: those whose holder let them lapse."""
        return self.page(Query("orphaned" if expired else "live", offset=offset, limit=limit)).records

    @abstractmethod
    def page(self, query: Query) -> Page:
        """Return some locks, by range reads of an index. ``TaskLockError`` where the store cannot list."""

    @abstractmethod
    def counts(self) -> Counts:
        """Return how many locks there are of each kind, by the index. ``TaskLockError`` where the store cannot list."""

    def acquire_all(self, names: Sequence[str], request: AcquireRequest) -> Grant | Busy:
        """Take several locks with one token, or none: ``Busy`` says which one is somebody else's.

        ``request`` has the terms of each; its name says nothing. Those that its token has already are among them, and
        are given back with the others. The fence is the greatest of theirs. Here one is taken after the other, so for
        a moment some may be busy although nobody comes to have all of them; a store that can takes them at once.
        """
        taken: list[str] = []
        fence = 0
        try:
            for name in names:
                answer = self.acquire(request._replace(name=name))
                if isinstance(answer, Busy):
                    self.release_all([one for one in names if one != name] if self.wakes else taken, request.token)
                    return answer._replace(name=name)
                taken.append(name)
                fence = max(fence, answer.fence)
        except BackendUnavailable as error:
            error.doubt |= bool(taken)
            raise
        return Grant(fence, request.ttl_ms)

    def release_all(self, names: Sequence[str], token: str) -> Released:
        """Give several locks back; what was found of the first that ``token`` had no more, if there is one."""
        return first_failed([self.release(name, token) for name in names])

    def extend_all(self, names: Sequence[str], token: str, ttl: int, hold: int) -> bool:
        """Do what ``extend`` does for several locks. False: one of them is not its lock any more."""
        return all(self.extend(name, token, ttl, hold) for name in names)

    def get_all(self, names: Sequence[str]) -> list[Record | None]:
        """Return who holds each of them now."""
        return [self.get(name) for name in names]

    async def aacquire_all(self, names: Sequence[str], request: AcquireRequest) -> Grant | Busy:
        """Do what ``acquire_all`` does, for coroutines. One that is cancelled gives back what it is granted."""
        give_back = partial(self.release_all, names, request.token)
        return await self.in_thread(self.acquire_all, names, request, undo=give_back)

    async def arelease_all(self, names: Sequence[str], token: str) -> Released:
        """Do what ``release_all`` does, for coroutines."""
        return await self.in_thread(self.release_all, names, token)

    async def aextend_all(self, names: Sequence[str], token: str, ttl: int, hold: int) -> bool:
        """Do what ``extend_all`` does, for coroutines."""
        return await self.in_thread(self.extend_all, names, token, ttl, hold)

    async def aget_all(self, names: Sequence[str]) -> list[Record | None]:
        """Do what ``get_all`` does, for coroutines."""
        return await self.in_thread(self.get_all, names)

    @cached_property
    def several(self) -> Several:
        """The same locks, for leases that have several of them."""
        return Several(self)

    def condition(self) -> Condition:
        """Return what the store says of itself, in one round trip. Raises ``BackendUnavailable``."""
        began, before = time.time(), time.monotonic()
        clock, policy = self._condition()
        latency = time.monotonic() - before
        return Condition(latency, None if clock is None else clock / 1000 - began - latency / 2, policy)

    def _condition(self) -> tuple[int | None, str | None]:
        """Return the store's clock in ms and its eviction policy: see ``Condition``."""
        self.get("health")
        return None, None

    def instance_states(self) -> Sequence[InstanceState]:
        """Return what each of several independent stores says, in the order of ``LOCATION``; nothing: there is one."""
        return ()

    def waiters(self, name: str, limit: int = 100) -> Queued:
        """Return who waits for ``name`` in the store's queue, the longest first. Nobody where waiters poll."""
        return Queued([], 0)

    def noted_wait(self, name: str, token: str) -> NotedWait | None:
        """Return what was noted of ``token`` by ``note_wait``, if that is not over. ``None`` where nothing is kept."""
        return None

    @abstractmethod
    def ask_release(self, name: str, token: str) -> bool:
        """Note that ``token`` is asked to give the lock back: its next renewal says so. False: not its lock."""

    def bound(self, name: str, token: str, ttl: int) -> bool:
        """Give a lock without expiry ``ttl`` ms, if it is ``token``'s; with ``""`` if its value is nobody's of ours."""
        return False  # where no lock can be without

    def prune(self, limit: int, *, lapsed_before: int | None = None, prefix: str = "", offset: int = 0) -> Pruned:
        """Forget up to ``limit`` locks that lapsed, before that time (ms) and with that beginning of their names.

        From the one that lapsed first on, ``offset`` of them left out. One that exists is never forgotten.
        """
        return Pruned(0, 0)

    @abstractmethod
    def remove(self, name: str, token: str | None = None) -> Record | None:
        """Take the lock away from its holder, only if that is ``token`` where one is given; what was removed.

        ``""`` is the token of a value that somebody has put there by other means.
        """

    def ticket(self, name: str = "", member: str = "") -> int:
        """Return a time in microseconds that grows from call to call: the order of what asked for one.

        ``member`` joins the line for ``name`` with it, where lines are kept. Between machines
        this ticket is as exact as their clocks; a store that has a clock does better.
        """
        global _last_ticket
        with _tickets:
            _last_ticket = max(_last_ticket + 1, time.time_ns() // 1000)
            return _last_ticket

    def expects(self, name: str, ticket: int, *, forget: bool = False) -> int:
        """Return how many in the line for ``name`` have a lower ticket; ``forget``: they leave it.

        0 where none is kept.
        """
        return 0

    def arrived(self, name: str, member: str) -> bool:
        """Leave the line for ``name``; whether others are in it. True where none is kept: looking never harms."""
        return True

    def newest(self, name: str, ticket: int) -> bool:
        """Tell whether no greater ticket has been shown for ``name``. True where that is not known."""
        return True

    def flag(self, name: str) -> bool:
        """Note that something waits for ``name`` elsewhere: who releases it is to look there.

        Whether it is certain that somebody holds it, and will see that.
        """
        return False

    def flagged(self, name: str) -> bool:
        """Tell whether there was such a note, which is gone then. True where none are kept: looking never harms."""
        return True

    def close(self) -> None:
        """Let go of connections. The backend can be used again afterwards."""

    async def aget(self, name: str) -> Record | None:
        """Do what ``get`` does, for coroutines."""
        return await self.in_thread(self.get, name)
