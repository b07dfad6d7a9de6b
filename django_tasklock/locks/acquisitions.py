"""The acquisitions made through one lock object, by owner."""

from __future__ import annotations

import weakref
from typing import NamedTuple

from django_tasklock.exceptions import TaskLockAcquireError
from django_tasklock.locks import lease as leases
from django_tasklock.locks.lease import Lease
from django_tasklock.locks.owner import MOST_PREDECESSORS, Owner, current_owner, disown
from django_tasklock.names import each_of
from django_tasklock.types import Record

PRUNE = 50
"""Owners of one object, from which on those that have ended are forgotten."""


class Refusal(NamedTuple):
    """Why an owner was refused, and the record of the holder, where that could be read."""

    error: TaskLockAcquireError
    record: Record | None = None


class _Acquisition:
    """What one owner has got through the object: a lease, acquired ``count`` times, or a refusal."""

    __slots__ = ("count", "lease", "owner", "refusal")

    def __init__(self, owner: weakref.ref[Owner], lease: Lease | None, count: int) -> None:
        self.owner = owner
        self.lease = lease
        self.count = count
        self.refusal: Refusal | None = None

    @property
    def current(self) -> Lease | None:
        """The lease that the owner has now: the last successor of those that were lost."""
        lease = self.lease
        while lease is not None and lease.successor is not None:
            lease = lease.successor
        return None if self.count <= 0 or lease is None or lease.released else lease


class Acquisitions:
    """What owners have acquired through one object, so that each finds its own lease.

    ``permits``: the object is a limiter. Its permits are apart from locks of the same name, and only their owner finds
    them: one release too many would release another owner's permit. ``owner``: used in place of the calling thread or
    task, such as the whole process.
    """

    __slots__ = ("_by_owner", "_fixed_owner", "_permits", "_prune_at", "last", "last_refusal")

    def __init__(self, *, permits: bool = False, owner: Owner | None = None) -> None:
        self._by_owner: dict[int, _Acquisition] = {}  # by the id of the reference that the entry keeps alive
        self._fixed_owner = owner
        self._permits = permits
        self._prune_at = PRUNE
        self.last: Lease | None = None
        """The lease that was acquired last, by any owner."""
        self.last_refusal: Refusal | None = None
        """The refusal of the owner that was refused last."""

    def owner(self) -> Owner:
        """Return the caller, with everything it has acquired through any object."""
        if self._fixed_owner is not None:
            return self._fixed_owner
        owner = current_owner()
        return owner.permits if self._permits else owner

    def find(self) -> Lease | None:
        """Return the caller's lease; for a caller that never asked through this object, the lease acquired last."""
        owner = self.owner()
        found = self._by_owner.get(id(owner.ref)) or self._of_predecessor()
        lease = (None if self._permits else self.last) if found is None else found.current
        return None if lease is None or lease.released or lease.generation != leases.generation else lease

    def add(self, lease: Lease, owner: Owner) -> None:
        """Record that ``owner`` has acquired ``lease``."""
        self.last = lease
        lease.owner = owner.ref  # first: if an exception from a signal handler comes here, disown() still works
        if type(lease.name) is str:
            owner[lease.name] = lease
        else:  # each of its names: their joined text may be the name of another lock
            owner.update(dict.fromkeys(each_of(lease.name), lease))
        before = self._by_owner.get(id(owner.ref))
        if before is not None and before.lease is not None and not before.lease.released:
            before.lease.successor = lease  # that one is lost
        self._add(owner, lease, 1)

    def add_reentry(self, lease: Lease) -> None:
        """Record that the caller has acquired ``lease``, which it holds, once more."""
        owner = self.owner()
        found = self._held_by(owner)
        if found is not None and found.lease is lease:
            found.count += 1
        else:
            self._add(owner, lease, 1)
        lease.count += 1
        self.last = lease

    def add_refusal(self, refusal: Refusal) -> None:
        """Record that the caller was refused: it has no lease, whatever others have acquired through this object."""
        owner = self.owner()
        if (found := self._held_by(owner)) is None:
            found = self._add(owner, None, 0)
        found.refusal = self.last_refusal = refusal

    def clear_refusal(self, owner: Owner) -> None:
        """Forget an earlier refusal of ``owner``, which asks again."""
        if (found := self._by_owner.get(id(owner.ref))) is not None:
            found.refusal = None

    def refusal(self) -> Refusal | None:
        """Return why the caller's last request was refused, ``None`` if it was not.

        For a caller that never asked through this object: the last refusal of any owner.
        """
        if self.last_refusal is None:
            return None
        found = self._by_owner.get(id(self.owner().ref)) or self._of_predecessor()
        return self.last_refusal if found is None else found.refusal

    def add_count(self, count: int) -> None:
        """Add ``count`` acquisitions of the lost lease that the caller's lease replaces."""
        if (found := self._held_by(self.owner())) is not None:
            found.count += count

    def count(self) -> int:
        """Return how often the caller has acquired it through this object and not released it."""
        found = self._held_by(self.owner()) if self._by_owner else None
        return 0 if found is None else found.count

    def count_release(self, lease: Lease) -> bool:
        """Count one release. Return whether it was the last one, so that the lease is to be released in the store."""
        found = self._by_owner.get(id(lease.owner))  # of the owner that acquired it, whoever releases it
        if found is not None and found.current is not lease:
            found = None
        # No calls from here on. Exceptions from signal handlers are raised at calls, so all of it is done, or nothing.
        lease.count -= 1
        if found is not None:
            found.count -= 1
        if self.last is lease and (found is None or found.count <= 0):
            self.last = None
        return lease.count <= 0

    def discard(self, lease: Lease) -> None:
        """Forget ``lease``: it has no owner any more."""
        disown(lease)
        if self.last is lease:
            self.last = None

    def _add(self, owner: Owner, lease: Lease | None, count: int) -> _Acquisition:
        added = self._by_owner[id(owner.ref)] = _Acquisition(owner.ref, lease, count)
        if len(self._by_owner) >= self._prune_at:
            for key, one in list(self._by_owner.items()):  # in place: other threads add to it meanwhile
                if one.owner() is None:
                    self._by_owner.pop(key, None)
            self._prune_at = 2 * max(len(self._by_owner), PRUNE)
        return added

    def _held_by(self, owner: Owner) -> _Acquisition | None:
        """Return what ``owner`` has acquired through this object and not released."""
        found = self._by_owner.get(id(owner.ref))
        return None if found is None or found.current is None else found

    def _of_predecessor(self) -> _Acquisition | None:
        """Return what the caller's coroutine was answered in an earlier call, through this object."""
        owner = current_owner().predecessor
        for _ in range(MOST_PREDECESSORS):
            if owner is None:
                break
            own = owner.permits if self._permits else owner
            if (found := self._by_owner.get(id(own.ref))) is not None:
                return found
            owner = owner.predecessor
        return None
