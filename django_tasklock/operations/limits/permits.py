"""Concurrency limiters for operators: who has their permits, and taking one away."""

from __future__ import annotations

from django_tasklock.backends import get_backend
from django_tasklock.backends.contract.permits import Permits
from django_tasklock.backends.contract.rates import TENANT, split_tenant
from django_tasklock.locks.info import lock_info
from django_tasklock.locks.semaphore import ConcurrencyLimiter
from django_tasklock.names import bare_name, clean
from django_tasklock.operations.audit import Attempt
from django_tasklock.operations.limits.values import LimitOutcome, LimitResult, PermitsPage, PermitsView
from django_tasklock.operations.optional import if_supported
from django_tasklock.operations.values import Actor

INDEXED = 5000  # names that are read from the store's index


def list_permits(text: str = "", limit: int = 100) -> PermitsPage:
    """Return concurrency limiters of which somebody has a permit, in order of their names.

    Raises ``TaskLockError`` where the store has no permits, ``BackendUnavailable``.
    """
    store = get_backend().permits
    names = sorted(name for name in store.names(INDEXED) if text.lower() in name.lower())
    found = (permits_view(store, name) for name in names[:limit])
    return PermitsPage([view for view in found if view is not None], len(names) > limit)


def get_permits(name: str) -> PermitsView | None:
    """Return who has a permit of a concurrency limiter; ``None``: nobody has.

    Raises ``BackendUnavailable``, ``TaskLockError`` for a name that cannot be or a store that has no permits.
    """
    return permits_view(get_backend().permits, bare_name(name))


def release_permit(name: str, member: str, *, by: Actor, reason: str = "") -> LimitResult:
    """Take the permit away from the member with this fingerprint, which goes on running.

    Raises ``BackendUnavailable``, ``TaskLockError`` for a name that cannot be or a store that has no permits.
    """
    limiter = ConcurrencyLimiter(name, 1)
    attempt = Attempt(by, "release_permit", limiter.name, reason)
    with attempt, attempt:
        removed = limiter.remove(member) if member else None
        if removed is None:
            return LimitResult(limiter.name, LimitOutcome.NOT_HELD)
        attempt.outcome = f"released; held by {removed.holder}"
    return LimitResult(limiter.name, LimitOutcome.RELEASED, member=removed)


def limiter_name(name: str) -> str:
    """Return ``name`` if a limiter or a tenant of one can have it. Raises ``TaskLockError`` that says why not."""
    limiter, tenant = split_tenant(name)
    limiter = clean(limiter)
    if tenant:
        clean(tenant)
    return limiter if tenant is None else f"{limiter}{TENANT}{tenant}"


def permits_or_none(name: str) -> PermitsView | None:
    """Return who has a permit of this name; ``None`` also where the store keeps none."""
    return if_supported(lambda: permits_view(get_backend().permits, name))


def permits_view(store: Permits, name: str) -> PermitsView | None:
    """Return who has a permit of this name; ``None``: nobody has."""
    members = store.members(name)
    if not members:
        return None
    limit = max(record.holder.limit for record in members)
    return PermitsView(name, limit or None, members[0].waiting, [lock_info(record) for record in members])
