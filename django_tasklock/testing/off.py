"""The store of ``locks_off()``: it grants every request."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import cached_property
from itertools import count
from typing import Any, TypeVar

from django_tasklock.backends.contract.leases import LeaseStore
from django_tasklock.backends.contract.locks import LockStore
from django_tasklock.backends.contract.permits import Permits
from django_tasklock.backends.contract.queries import Counts, Page, Query
from django_tasklock.backends.contract.several import Several
from django_tasklock.backends.ledger.state import State
from django_tasklock.backends.memory.metrics import MemoryMetrics
from django_tasklock.backends.memory.rates import MemoryRates
from django_tasklock.backends.memory.store import Store
from django_tasklock.conf import Settings
from django_tasklock.types import AcquireRequest, Busy, Grant, Holder, Record, Released, Renewal, RenewalResult

T = TypeVar("T")
_fences = count(time.time_ns() // 1000)


def _record(name: str, token: str) -> Record:
    now = time.time_ns() // 1_000_000
    return Record(name, token, Holder(), now, now, now, 0, None)


class GrantingLeases(LeaseStore):
    """Leases that are always granted. The store knows no holders."""

    def acquire(self, request: AcquireRequest) -> Grant | Busy:
        return Grant(next(_fences), request.ttl_ms)

    def release(self, name: str, token: str) -> Released:
        return Released.RELEASED

    def extend(self, name: str, token: str, ttl: int, hold: int) -> bool:
        return True

    def renew(self, batch: Sequence[Renewal]) -> list[RenewalResult]:
        return [RenewalResult.RENEWED for _ in batch]

    def get_held(self, name: str, token: str) -> Record | None:
        return _record(name, token)

    async def in_thread(self, verb: Callable[..., T], *args: Any, undo: Callable[[], object] | None = None) -> T:
        """Run ``verb`` in the calling thread: it does no I/O."""
        return verb(*args)

    async def aget_held(self, name: str, token: str) -> Record | None:
        return self.get_held(name, token)


class GrantingPermits(GrantingLeases, Permits):
    """Permits without a limit."""

    def members(self, name: str) -> list[Record]:
        return []

    def remove(self, name: str, token: str) -> Record | None:
        return None

    def names(self, limit: int = 1000) -> list[str]:
        return []


class GrantingSeveral(Several):
    """Several names at once, always granted."""

    def get_held(self, name: str, token: str) -> Record | None:
        return _record(name, token)

    async def aget_held(self, name: str, token: str) -> Record | None:
        return self.get_held(name, token)


class Forgetful(dict[str, State]):
    """A dict of states that stays empty, so that each call is the first one of its limit."""

    def __setitem__(self, name: str, state: State) -> None:
        """Store nothing."""


class GrantingBackend(GrantingLeases, LockStore):
    """A store that refuses no lock, permit or rate, for tests of something else."""

    across_processes = False

    def __init__(self, settings: Settings) -> None:
        self.permits = GrantingPermits()
        self.rates = MemoryRates(Forgetful())
        self.metrics = MemoryMetrics(Store())

    @cached_property
    def several(self) -> Several:
        """The verbs for several names at once. They are granted, too."""
        return GrantingSeveral(self)

    def get(self, name: str) -> Record | None:
        return None

    def page(self, query: Query) -> Page:
        return Page([], 0, None)

    def counts(self) -> Counts:
        return Counts(0, 0, 0, 0)

    def ask_release(self, name: str, token: str) -> bool:
        return False

    def remove(self, name: str, token: str | None = None) -> Record | None:
        return None
