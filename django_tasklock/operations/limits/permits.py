"""Operators' actions on concurrency limiters: list the holders of permits, release a permit."""

from __future__ import annotations

from collections.abc import Sequence

from django_tasklock.backends import get_backend
from django_tasklock.backends.contract.rates import TENANT, split_tenant
from django_tasklock.backends.contract.stores import Permits
from django_tasklock.locks.info import lock_info
from django_tasklock.locks.semaphore import ConcurrencyLimiter
from django_tasklock.names import bare_name, clean
from django_tasklock.operations.audit import audited
from django_tasklock.operations.limits.values import LimitOutcome, LimitResult, PermitsPage, PermitsView
from django_tasklock.operations.optional import if_supported
from django_tasklock.operations.values import Actor
from django_tasklock.types import Record

MAX_NAMES = 5000  # names read from the store's index


def list_permits(text: str = "", limit: int = 100) -> PermitsPage:
    """Return the concurrency limiters of which a permit is taken, by name.

    Raises ``TaskLockError`` if the store has no permits, and ``BackendUnavailable``.
    """
    store = get_backend().permits
    names = sorted(name for name in store.names(MAX_NAMES) if text.lower() in name.lower())
    listed = names[:limit]
    found = [_make_view(name, members) for name, members in zip(listed, store.members_of(listed), strict=True)]
    return PermitsPage([view for view in found if view is not None], len(names) > limit)


def get_permits(name: str) -> PermitsView | None:
    """Return the permits of a concurrency limiter; ``None`` if none is taken.

    Raises ``BackendUnavailable``, and ``TaskLockError`` for an invalid name or a store without permits.
    """
    return read_permits(get_backend().permits, bare_name(name))


def release_permit(name: str, member: str, *, by: Actor, reason: str = "") -> LimitResult:
    """Release the permit of the member with this fingerprint; the member goes on running.

    Raises ``BackendUnavailable``, and ``TaskLockError`` for an invalid name or a store without permits.
    """
    limiter = ConcurrencyLimiter(name, 1)
    with audited(by, "release_permit", limiter.name, reason) as attempt:
        removed = limiter.remove(member) if member else None
        if removed is None:
            return LimitResult(limiter.name, LimitOutcome.NOT_HELD)
        attempt.outcome = f"released; held by {removed.holder}"
    return LimitResult(limiter.name, LimitOutcome.RELEASED, member=removed)


def clean_limiter_name(name: str) -> str:
    """Return ``name`` if it is a valid name of a limiter or of its tenant. Raises ``TaskLockError`` with the reason."""
    limiter, tenant = split_tenant(name)
    limiter = clean(limiter)
    if tenant:
        clean(tenant)
    return limiter if tenant is None else f"{limiter}{TENANT}{tenant}"


def read_permits_if_supported(name: str) -> PermitsView | None:
    """Return the permits of this name; ``None`` if none is taken or the store has no permits."""
    return if_supported(lambda: read_permits(get_backend().permits, name))


def read_permits(store: Permits, name: str) -> PermitsView | None:
    """Return the permits of this name; ``None`` if none is taken."""
    return _make_view(name, store.members(name))


def _make_view(name: str, members: Sequence[Record]) -> PermitsView | None:
    if not members:
        return None
    limit = max(record.holder.limit for record in members)
    return PermitsView(name, limit or None, members[0].waiting, [lock_info(record) for record in members])
