"""The work that a process still has to do in the store once that answers again.

It releases what a failed acquire or release may have left there, and acquires the locks of bodies that run without
them, because the policy ``"run"`` let them begin in an outage: from then on they are locked like any other.
"""

from __future__ import annotations

import logging
import weakref
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NamedTuple

from django_tasklock.backends.contract.stores import LeaseStore
from django_tasklock.locks import events
from django_tasklock.locks.lease import Lease
from django_tasklock.logs import log
from django_tasklock.types import AcquireRequest, Busy, monotonic

FIRST_PAUSE = 0.01  # seconds: most failures are those of one connection, not of the store
AGAIN = 0.5
"""The longest pause between two tries while the store does not answer, in seconds."""
STRAY = 2.0  # seconds in which a request that was given up may still reach the store
EXIT_STRAY = 0.25  # seconds of these for which an exiting process waits: the store answers, so the request is not far


@dataclass(slots=True)
class Leftover:
    """A token that may still hold a lock in the store although its taker has given it up."""

    backend: LeaseStore
    name: str
    token: str
    until: float
    """When it has expired, or has been missing in the store for long enough."""
    counted_as: str
    granted_at: float
    """As of a ``Lease``."""
    missing: float = 0.0
    """Since when the store does not know it. The request may still be on its way. 0: it was not found missing."""


class WithoutLock(NamedTuple):
    """A body that runs without its lock, and the request for that."""

    lease: weakref.ref[Lease]
    request: AcquireRequest


class Reconciler:
    """The releases and acquisitions that one process has left to do, by token. The heartbeat's thread does them."""

    def __init__(self) -> None:
        self.leftovers: dict[str, Leftover] = {}
        self.pending: dict[str, WithoutLock] = {}
        self.pause = FIRST_PAUSE
        """Seconds until the next try, doubled by each try that leaves something to do."""
        self._has_warned = False

    def __bool__(self) -> bool:
        return bool(self.leftovers or self.pending)

    def backends(self) -> set[LeaseStore]:
        """Return the stores in which something is left to do."""
        found = {left.backend for left in list(self.leftovers.values())}  # other threads add to them meanwhile
        leases = [one.lease() for one in list(self.pending.values())]
        return found | {lease.backend for lease in leases if lease is not None}

    def release_later(self, lease: Lease, longest: int) -> None:
        """Release ``lease``. After ``longest`` milliseconds it has expired."""
        self.pause = FIRST_PAUSE
        self.leftovers[lease.token] = Leftover(
            lease.backend, lease.name, lease.token, monotonic() + longest / 1000, lease.counted_as, lease.granted_at
        )

    def acquire_later(self, lease: Lease, request: AcquireRequest) -> None:
        """Acquire the lock for ``lease``, for the rest of its timeout, unless another holder has it."""
        self.pause = FIRST_PAUSE
        self.pending[lease.token] = WithoutLock(weakref.ref(lease), request)

    def clear(self) -> None:
        """Forget all that is left to do: in the store it expires."""
        self.leftovers.clear()
        self.pending.clear()
        self._has_warned = False

    def run(self, follow: Callable[[Lease], None], lose: Callable[[Lease, str], None]) -> None:
        """Try everything once. ``follow`` is called for acquired leases, ``lose`` where another holder has the lock."""
        self.pause = min(2 * self.pause, AGAIN)
        silent = self.free_all()
        for token, pending in list(self.pending.items()):
            lease = pending.lease()
            if lease is None or lease.released or monotonic() >= lease.until:
                self.pending.pop(token, None)
            elif lease.backend not in silent and self._acquire(token, lease, pending.request, follow, lose) is None:
                silent.add(lease.backend)
        if not self:
            self._has_warned = False

    @property
    def settled(self) -> bool:
        """Whether the process may exit: all that is left is missing in a store that answers."""
        now = monotonic()
        return all(left.missing and now >= left.missing + EXIT_STRAY for left in list(self.leftovers.values()))

    def free_all(self) -> set[LeaseStore]:
        """Release what can be released. Return the stores that do not answer."""
        silent: set[LeaseStore] = set()
        for token, left in list(self.leftovers.items()):
            if left.backend not in silent and not self._free(token, left):
                silent.add(left.backend)
            if monotonic() >= self.leftovers.get(token, left).until:
                self.leftovers.pop(token, None)  # it has expired
        return silent

    def _free(self, token: str, left: Leftover) -> bool:
        """Release one. Return False if the store does not answer."""
        try:
            outcome = left.backend.release(left.name, token)
        except Exception as error:  # of any kind: it must not end the renewals
            self._warn("released", left.backend, left.name, error)
            return False
        if outcome:
            self._freed(token)
        elif not left.missing and token in self.leftovers:  # the acquire request may still be on its way to the store
            now = monotonic()
            self.leftovers[token] = replace(left, until=min(left.until, now + STRAY), missing=now)
        return True

    def _freed(self, token: str) -> None:
        """Count a release, once, and forget what it has released."""
        left = self.leftovers.pop(token, None)
        if left is not None:
            events.count_release(left)

    def _acquire(
        self,
        token: str,
        lease: Lease,
        request: AcquireRequest,
        follow: Callable[[Lease], None],
        lose: Callable[[Lease, str], None],
    ) -> bool | None:
        """Acquire one. Return ``None`` if the store does not answer."""
        sent = monotonic()
        left = max(1, round((lease.until - sent) * 1000))
        try:
            answer = lease.backend.acquire(request._replace(ttl_ms=min(request.ttl_ms, left), hold_ms=left))
        except Exception as error:
            self._warn("taken", lease.backend, lease.name, error)
            return None
        events.count_expired(lease, answer)
        if isinstance(answer, Busy):
            self.pending.pop(token, None)
            who = "another holder" if answer.record is None else answer.record.holder
            lose(lease, f"a body runs without it, and {who} has it now")
            return False
        lease.granted(answer, sent, left)
        lease.without_lock = False
        events.count_grant(lease)
        self.pending.pop(token, None)
        if lease.released:  # the body has ended meanwhile, when there was nothing to release yet
            self.release_later(lease, left)
        else:
            if lease.lease_ms is not None:
                follow(lease)
            text = "%s %r: taken after all by a body that began without it"
            log(logging.INFO, text, lease.backend.noun, lease.name)
        return True

    def _warn(self, action: str, backend: LeaseStore, name: str, error: Exception) -> None:
        if not self._has_warned:  # once in an outage, not twice a second
            self._has_warned = True
            text = "%s %r and maybe others: not %s yet, trying on: %s"
            log(logging.WARNING, text, backend.noun, name, action, error)
