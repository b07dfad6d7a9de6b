"""What a process still has to do in the store as soon as that answers.

It gives back what a failed acquire or release may have left there, and takes the locks that
bodies run without, because the policy ``"run"`` let them begin in an outage: from then on
they are locked like any other.
"""

from __future__ import annotations

import logging
import weakref
from collections.abc import Callable
from typing import NamedTuple

from django_tasklock.backends.contract.leases import LeaseStore
from django_tasklock.locks.lease import Lease
from django_tasklock.logs import log
from django_tasklock.types import AcquireRequest, Busy, monotonic

SOON = 0.01  # seconds, twice which is to the second try: most failures are a connection's, not the store's
AGAIN = 0.5
"""Seconds between two tries while the store does not answer, at the most."""
STRAY = 2.0  # seconds in which a request that was given up may still reach the store
LAST = 0.25  # of these seconds a process that ends waits for so many: the store has answered, so it is not far


def close_idle_quietly(backend: LeaseStore) -> None:
    """Call ``backend.close_idle()``; what that raises is no reason not to look after the others."""
    try:
        backend.close_idle()
    except Exception as error:
        log(logging.WARNING, "%s store: a connection was not closed: %r", backend.noun, error)


class Leftover(NamedTuple):
    """A token that may hold a lock although nobody counts on it."""

    backend: LeaseStore
    name: str
    token: str
    until: float
    """When its lease has ended by itself, or it has been missing in the store for long enough."""
    missing: float = 0.0
    """Since when: it may still be on its way to the store. 0: it was not found missing."""


class WithoutLock(NamedTuple):
    """A body that runs without its lock, and what it would have asked for."""

    lease: weakref.ref[Lease]
    request: AcquireRequest


class Reconciler:
    """Those of one process, by token. The heartbeat's thread runs them."""

    def __init__(self) -> None:
        self.leftovers: dict[str, Leftover] = {}
        self.pending: dict[str, WithoutLock] = {}
        self.pause = SOON
        """Seconds to the next try: each that leaves something doubles it."""
        self._complained = False

    def __bool__(self) -> bool:
        return bool(self.leftovers or self.pending)

    def release_later(self, lease: Lease, longest: int) -> None:
        """Release ``lease``; after ``longest`` ms it has ended by itself."""
        self.pause = SOON
        self.leftovers[lease.token] = Leftover(lease.backend, lease.name, lease.token, monotonic() + longest / 1000)

    def acquire_later(self, lease: Lease, request: AcquireRequest) -> None:
        """Take the lock that ``lease`` is without, for as long as its timeout leaves it, unless somebody has it."""
        self.pause = SOON
        self.pending[lease.token] = WithoutLock(weakref.ref(lease), request)

    def clear(self) -> None:
        """Forget all that is left to do: what is left in the store ends with its lease."""
        self.leftovers.clear()
        self.pending.clear()
        self._complained = False

    def run(self, follow: Callable[[Lease], None], lose: Callable[[Lease, str], None]) -> None:
        """Do what can be done; ``follow`` is given what has a lease now, ``lose`` whose lock somebody else has."""
        self.pause = min(2 * self.pause, AGAIN)
        backends = {left.backend for left in list(self.leftovers.values())}  # others add to them meanwhile
        silent = self.free_all()
        for token, pending in list(self.pending.items()):
            lease = pending.lease()
            if lease is None or lease.released or monotonic() >= lease.until:
                self.pending.pop(token, None)
            elif lease.backend not in silent:
                backends.add(lease.backend)
                if self._take(token, lease, pending.request, follow, lose) is None:
                    silent.add(lease.backend)
        for backend in backends:
            close_idle_quietly(backend)
        if not self:
            self._complained = False

    @property
    def settled(self) -> bool:
        """Whether a process may end: what is left is missing in a store that answers."""
        now = monotonic()
        return all(left.missing and now >= left.missing + LAST for left in list(self.leftovers.values()))

    def free_all(self) -> set[LeaseStore]:
        """Release what can be released; the stores that do not answer."""
        silent: set[LeaseStore] = set()
        for token, left in list(self.leftovers.items()):
            if left.backend not in silent and not self._free(token, left):
                silent.add(left.backend)
            if monotonic() >= self.leftovers.get(token, left).until:
                self.leftovers.pop(token, None)  # its lease has ended by itself
        return silent

    def free(self, token: str) -> None:
        """Try to release one at once, from the thread that has left it. Raises what the store raises."""
        left = self.leftovers.get(token)
        if left is not None and left.backend.release(left.name, token):
            self.leftovers.pop(token, None)

    def _free(self, token: str, left: Leftover) -> bool:
        """Release one; False if the store does not answer."""
        try:
            outcome = left.backend.release(left.name, token)
        except Exception as error:  # whatever it is, it must not end the renewal of the others
            self._complain("released", left.backend, left.name, error)
            return False
        if outcome:
            self.leftovers.pop(token, None)
        elif not left.missing and token in self.leftovers:  # what was asked for may still be on its way to the store
            now = monotonic()
            self.leftovers[token] = left._replace(until=min(left.until, now + STRAY), missing=now)
        return True

    def _take(
        self,
        token: str,
        lease: Lease,
        request: AcquireRequest,
        follow: Callable[[Lease], None],
        lose: Callable[[Lease, str], None],
    ) -> bool | None:
        """Take one; ``None`` if the store does not answer."""
        sent = monotonic()
        left = max(1, round((lease.until - sent) * 1000))
        try:
            answer = lease.backend.acquire(request._replace(ttl_ms=min(request.ttl_ms, left), hold_ms=left))
        except Exception as error:
            self._complain("taken", lease.backend, lease.name, error)
            return None
        if isinstance(answer, Busy):
            self.pending.pop(token, None)
            who = "somebody" if answer.record is None else answer.record.holder
            lose(lease, f"a body runs without it, and {who} has it now")
            return False
        lease.granted(answer, sent, left)
        lease.without_lock = False
        self.pending.pop(token, None)
        if lease.released:  # meanwhile, when there was nothing to release yet
            self.release_later(lease, left)
        else:
            if lease.span is not None:
                follow(lease)
            text = "%s %r: taken after all by a body that began without it"
            log(logging.INFO, text, lease.backend.noun, lease.name)
        return True

    def _complain(self, what: str, backend: LeaseStore, name: str, error: Exception) -> None:
        if not self._complained:  # an outage is told once, not twice a second
            self._complained = True
            text = "%s %r and maybe others: not %s yet, trying on: %s"
            log(logging.WARNING, text, backend.noun, name, what, error)
