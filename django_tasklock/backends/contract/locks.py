"""The contract of a store of locks. A store is responsible for atomicity and nothing else.

It handles names, tokens and milliseconds; tasks, guards and policies are handled by the
layers above. Names are passed without the key prefix. Every operation

* is one round trip where the store can do it in one,
* compares times with the store's clock, never with the caller's,
* raises ``BackendUnavailable`` when the store could not be asked, and nothing else,
* is safe to repeat with the same token, because a reply can be lost.
"""

from __future__ import annotations

import threading
import time
from abc import abstractmethod
from collections.abc import Sequence
from functools import cached_property

from django_tasklock.backends.contract.leases import LeaseStore, Queued
from django_tasklock.backends.contract.lists import Counts, Which
from django_tasklock.backends.contract.permits import Permits
from django_tasklock.backends.contract.rates import RateStore
from django_tasklock.backends.contract.several import Several
from django_tasklock.exceptions import TaskLockError
from django_tasklock.types import Condition, InstanceState, Record

_number_lock = threading.Lock()
_last_number = 0


class LockStore(LeaseStore):
    """A store of locks. One object per process, shared by its threads, created anew after a fork."""

    across_processes: bool = True
    """False: only this process sees the locks."""
    keeps_order: bool = False
    """True: members that drew a number for a name with ``next_number()`` are in its order until ``leave_order()``."""

    @cached_property
    def permits(self) -> Permits:
        """The store's permits, for concurrency limiters. ``TaskLockError`` where it has none."""
        raise TaskLockError(
            f"{type(self).__name__} has no permits: a concurrency limiter needs Redis or the database:"
            " point TASKLOCK['LOCATION'] at Redis, or set TASKLOCK['BACKEND'] to the database backend"
        )

    @cached_property
    def rates(self) -> RateStore:
        """The store's rate limits. ``TaskLockError`` where it has none."""
        raise TaskLockError(
            f"{type(self).__name__} keeps no rate limits: point TASKLOCK['LOCATION'] at Redis,"
            " or set TASKLOCK['BACKEND'] to the database backend"
        )

    @abstractmethod
    def get(self, name: str) -> Record | None:
        """Return the record of the lock ``name``; ``None`` if it is free."""

    def get_held(self, name: str, token: str) -> Record | None:
        return self.get(name)

    async def aget_held(self, name: str, token: str) -> Record | None:
        return await self.aget(name)

    @abstractmethod
    def records(self, which: Which = "live", *, offset: int = 0, limit: int = 1000) -> list[Record]:
        """Return locks of a state in order of expiry, by a range read of an index.

        Fewer than ``limit``: there are no more. ``TaskLockError`` where the store cannot list.
        """

    @abstractmethod
    def counts(self) -> Counts:
        """Return how many locks of each state the index has. ``TaskLockError`` where the store cannot list."""

    @cached_property
    def several(self) -> Several:
        """The same locks, for leases that cover several of them."""
        return Several(self)

    def condition(self) -> Condition:
        """Return the store's latency, clock offset and eviction policy, in one round trip. Raises
        ``BackendUnavailable``.
        """
        began, before = time.time(), time.monotonic()
        clock, policy = self._condition()
        latency = time.monotonic() - before
        return Condition(latency, None if clock is None else clock / 1000 - began - latency / 2, policy)

    def _condition(self) -> tuple[int | None, str | None]:
        """Return the store's clock in ms and its eviction policy: see ``Condition``."""
        self.get("health")
        return None, None

    def instance_states(self) -> Sequence[InstanceState]:
        """Return the state of each of several independent instances, in the order of ``LOCATION``; empty for a single
        store.
        """
        return ()

    def waiters(self, name: str, limit: int = 100) -> Queued:
        """Return the waiters in the store's queue for ``name``, the longest first; none where waiters poll."""
        return Queued([], 0)

    @abstractmethod
    def ask_release(self, name: str, token: str) -> bool:
        """Record that ``token`` is asked to release the lock: its next renewal returns that. False: not its lock."""

    def set_expiry(self, name: str, token: str, ttl: int) -> bool:
        """Give a lock without expiry a TTL of ``ttl`` ms, if ``token`` holds it; ``""`` stands for a foreign value."""
        return False  # a store whose locks always expire

    def prune(self, limit: int) -> int:
        """Drop up to ``limit`` orphaned locks from the index; return how many. A lock that exists is never dropped."""
        return 0

    @abstractmethod
    def remove(self, name: str, token: str | None = None) -> Record | None:
        """Take the lock away from its holder, if a token is given only from that one; return the removed record.

        ``""`` stands for a foreign value, one that was not written by this package.
        """

    def next_number(self, name: str = "", member: str = "") -> int:
        """Return a sequence number: a time in microseconds, greater than that of any earlier call.

        ``member`` joins the order of ``name`` with it, where the store keeps one. Between machines
        this default is only as exact as their clocks; a store with a clock of its own uses that.
        """
        global _last_number
        with _number_lock:
            _last_number = max(_last_number + 1, time.time_ns() // 1000)
            return _last_number

    def count_before(self, name: str, number: int, *, forget: bool = False) -> int:
        """Return how many members of the order of ``name`` have a lower sequence number; ``forget``: remove them.

        0 where the store keeps no order.
        """
        return 0

    def leave_order(self, name: str, member: str) -> bool:
        """Remove ``member`` from the order of ``name``; return whether others are in it.

        True where the store keeps no order: a caller that then checks in vain does no harm.
        """
        return True

    def record_newest(self, name: str, number: int) -> bool:
        """Record a sequence number; return whether none greater was recorded for ``name``. True where it is unknown."""
        return True

    def set_flag(self, name: str) -> bool:
        """Set the flag of ``name``: a message is parked for it, and the next holder to release the lock should check.

        Return whether the lock is certainly held, so that its holder will see the flag.
        """
        return False

    def clear_flag(self, name: str) -> bool:
        """Clear the flag of ``name``; return whether it was set.

        True where the store has no flags: a caller that then checks in vain does no harm.
        """
        return True

    def close(self) -> None:
        """Close the connections. One that another thread is using is closed when that thread has finished with it. The
        store can be used again afterwards, for example to release what was acquired before; no connection stays open.
        """

    async def aget(self, name: str) -> Record | None:
        """Do what ``get`` does, for coroutines."""
        return await self.in_thread(self.get, name)
