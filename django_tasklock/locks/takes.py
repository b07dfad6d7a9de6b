"""Who has taken what through one lock object. Several threads and asyncio tasks may share it."""

from __future__ import annotations

import weakref

from django_tasklock.locks.lease import LINEAGE, Lease, Leases, leases_here

PRUNE = 50  # threads and asyncio tasks that have shared one object, before those that ended are forgotten


class _Take:
    """What one thread, asyncio task or call has from the object: taken so many times, or refused."""

    __slots__ = ("home", "lease", "times")

    def __init__(self, home: weakref.ref[Leases], lease: Lease | None, times: int) -> None:
        self.home = home
        self.lease = lease
        self.times = times

    @property
    def now(self) -> Lease | None:
        """What it has; what took the place of a lost one."""
        lease = self.lease
        while lease is not None and lease.successor is not None:
            lease = lease.successor
        return None if self.times <= 0 or lease is None or lease.released else lease


class Takes:
    """What callers have taken through one object, so that each finds the lease that is its own.

    ``permits``: those of a limiter, which are no locks even where they have the same name, and which nobody but their
    taker finds: the second release of one would be the other's first. ``own``: the leases of somebody else than who
    calls, a process say.
    """

    __slots__ = ("_by", "_own", "_permits", "_prune_at", "last")

    def __init__(self, *, permits: bool = False, own: Leases | None = None) -> None:
        self._by: dict[int, _Take] = {}
        self._own = own
        self._permits = permits
        self._prune_at = PRUNE
        self.last: Lease | None = None
        """What was taken last, by whomever."""

    def here(self) -> Leases:
        """Return what who calls has taken through any object."""
        if self._own is not None:
            return self._own
        here = leases_here()
        return here.permits if self._permits else here

    def find(self) -> Lease | None:
        """Return what who calls has taken through this object, or, who never asked for it, what was taken last."""
        home = self.here()
        take = self._by.get(id(home))
        if take is None or take.home is not home.ref:
            take = self._asked_before()
        lease = (None if self._permits else self.last) if take is None else take.now
        return None if lease is None or lease.released or lease.foreign else lease

    def keep(self, lease: Lease) -> None:
        """Note that who calls has taken ``lease``."""
        home = self.here()
        self.last = lease
        lease.settle(home)
        self._note(home, lease, 1)

    def again(self, lease: Lease) -> None:
        """Note that who calls has taken ``lease`` once more, which it has."""
        home = self.here()
        take = self._of(home)
        if take is not None and take.lease is lease:
            take.times += 1
        else:
            self._note(home, lease, 1)
        lease.count += 1
        self.last = lease

    def refused(self) -> None:
        """Note that who calls was refused: it has nothing, whatever others have taken through this object."""
        home = self.here()
        if self._of(home) is None:
            self._note(home, None, 0)

    def inherit(self, times: int) -> None:
        """Note that who calls has taken what it has so many times more: as often as what that took the place of."""
        if (take := self._of(self.here())) is not None:
            take.times += times

    def times(self) -> int:
        """Return how often who calls has taken it through this object, and not given it back."""
        take = self._of(self.here()) if self._by else None
        return 0 if take is None else take.times

    def returned(self, lease: Lease) -> bool:
        """Count one re-entry less; return whether it was the last, so that the lease is to be released."""
        home = None if lease.home is None else lease.home()
        take = self._by.get(id(home))  # of who took it, whoever returns it
        lease.count -= 1
        if take is not None and take.now is lease:
            take.times -= 1
        if self.last is lease and (take is None or take.times <= 0):
            self.last = None
        return lease.count <= 0

    def drop(self, lease: Lease) -> None:
        """Forget ``lease``: it belongs to nobody any more."""
        lease.leave()
        if self.last is lease:
            self.last = None

    def _note(self, home: Leases, lease: Lease | None, times: int) -> None:
        self._by[id(home)] = _Take(home.ref, lease, times)
        if len(self._by) >= self._prune_at:
            self._by = {key: take for key, take in list(self._by.items()) if take.home() is not None}
            self._prune_at = 2 * max(len(self._by), PRUNE)

    def _of(self, home: Leases) -> _Take | None:
        """Return what ``home`` has taken through this object and not given back."""
        take = self._by.get(id(home))
        return None if take is None or take.home is not home.ref or take.now is None else take

    def _asked_before(self) -> _Take | None:
        """Return what became of the last time that who calls asked through this object, in an earlier call of its."""
        before = leases_here().before
        for _ in range(LINEAGE):
            if before is None:
                break
            own = before.permits if self._permits else before
            take = self._by.get(id(own))
            if take is not None and take.home is own.ref:
                return take
            before = before.before
        return None
