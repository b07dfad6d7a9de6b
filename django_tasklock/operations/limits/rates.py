"""Operators' actions on rate limits: list, reset, change, pause and resume them.

Known are those of ``TASKLOCK["RATE_LIMITS"]`` and those in the store's index. The terms of a limiter that is defined
only in code are those that its last caller stored.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import NamedTuple

from django_tasklock.backends import get_backend
from django_tasklock.backends.contract.rates import RateStore, Terms, split_tenant
from django_tasklock.conf import get_settings
from django_tasklock.exceptions import TaskLockError
from django_tasklock.operations.audit import audited
from django_tasklock.operations.limits.permits import clean_limiter_name, read_permits_if_supported
from django_tasklock.operations.limits.values import (
    LimitDetail,
    LimitOutcome,
    LimitPage,
    LimitResult,
    LimitState,
    LimitView,
)
from django_tasklock.operations.trail import recent_acts
from django_tasklock.operations.values import Act, Actor
from django_tasklock.rates.options import check_share, parse_options
from django_tasklock.rates.usage import RateUsage, usage_of

MAX_PAGE_SIZE = 200  # limiters per page: each costs one request to the store
MAX_NAMES = 5000  # names read from an index of the store
MAX_TENANTS = 100  # tenants listed per limiter
FULL_SHARE = 1_000_000
LONGEST_PAUSE = 604_800
"""Seconds: a week."""
_UNTIL = "until {:%Y-%m-%d %H:%M:%S} UTC"


def list_limits(text: str = "", *, name: str | None = None, offset: int = 0, limit: int = 50) -> LimitPage:
    """Return rate limits by state: paused, full, open, idle; in each the settings' first, then by last use.

    ``text``: part of their names; ``name``: only this one.

    Tenants are counted, not listed. Raises ``TaskLockError`` if the store has no rate limits or the page is invalid,
    and ``BackendUnavailable``.
    """
    if not 1 <= limit <= MAX_PAGE_SIZE or offset < 0:
        raise TaskLockError(f"limit must be 1 to {MAX_PAGE_SIZE} and offset 0 or more, not {limit} and {offset}")
    store = get_backend().rates
    names = list(dict.fromkeys([*sorted(get_settings().RATE_LIMITS), *store.names(MAX_NAMES)]))
    if name is not None:
        names = [name] if name in names or _is_used(store, name) else []
    found = [each for each in names if text.lower() in each.lower()]
    if len(found) <= MAX_PAGE_SIZE:  # sort by state, which costs a request for each; longer lists are not sorted
        views = sorted(_read_views(store, found), key=lambda view: _STATE_ORDER[view.state])[offset : offset + limit]
    else:
        views = _read_views(store, found[offset : offset + limit])
    following = offset + limit
    return LimitPage(views, len(found), following if following < len(found) else None)


_STATE_ORDER = {LimitState.PAUSED: 0, LimitState.FULL: 1, LimitState.OPEN: 2, LimitState.IDLE: 3}


def get_limit(name: str) -> LimitDetail:
    """Return all that is known about a name, as a rate limit and as a concurrency limiter.

    Raises ``BackendUnavailable``, and ``TaskLockError`` for an invalid name or a store that has neither.
    """
    name = clean_limiter_name(name)
    store = get_backend().rates
    known = name in get_settings().RATE_LIMITS or _is_used(store, name)
    [limit] = _read_views(store, [name]) if known else [None]
    tenant_views = _read_views(store, store.names(MAX_TENANTS, of=name))
    history = recent_acts(name, "limit")
    return LimitDetail(name, limit, tenant_views, read_permits_if_supported(name), history, _find_pause(limit, history))


def reset_limit(name: str, *, by: Actor, reason: str = "") -> LimitResult:
    """Delete the usage, reservations, pause and lowered share of this name. Callers that sleep book again.

    The limiter's tenants have books of their own, which stay. Raises as ``get_limit`` does.
    """
    known = _find_known_limit(name)
    if known is None:
        return LimitResult(name, LimitOutcome.UNKNOWN)
    store, terms, before = known
    usage_before = ", ".join(
        f"{window.used} used and {window.ahead} ahead of {window.rate}" for window in before.windows
    )
    with audited(by, "reset_limit", name, reason) as attempt:
        store.reset(terms)
        attempt.outcome = f"reset; before: {usage_before}"
    return LimitResult(name, LimitOutcome.RESET, 1.0, before.share)


def change_limit(name: str, share: float, *, by: Actor, reason: str = "") -> LimitResult:
    """Enforce only this share of the limit, 1.0 being all of it, for as long as ``RateLimiter.adjust`` states.

    Raises as ``get_limit`` does, and ``TaskLockError`` for an invalid share.
    """
    check_share(share)
    known = _find_known_limit(name)
    if known is None:
        return LimitResult(name, LimitOutcome.UNKNOWN)
    store, terms, before = known
    with audited(by, "change_limit", name, reason) as attempt:
        store.adjust(terms, round(share * FULL_SHARE))
        rates = ", ".join(map(str, terms.rates))
        attempt.outcome = f"changed from {before.share * 100:g} % to {share * 100:g} % of {rates}"
    return LimitResult(name, LimitOutcome.CHANGED, float(share), before.share)


def pause_limit(name: str, seconds: float, *, by: Actor, reason: str = "") -> LimitResult:
    """Let no call pass for ``seconds`` from now, replacing any other pause. Waiting callers keep their positions.

    A call that may not wait that long is refused or deferred, as its options say. Raises as ``get_limit`` does, and
    ``TaskLockError`` for an invalid time, such as more than a week.
    """
    if type(seconds) not in (int, float) or not 1 <= seconds <= LONGEST_PAUSE:
        raise TaskLockError(f"a limiter is paused for 1 to {LONGEST_PAUSE} seconds, not {seconds!r}")
    known = _find_known_limit(name)
    if known is None:
        return LimitResult(name, LimitOutcome.UNKNOWN)
    store, terms, before = known
    until = before.time + timedelta(seconds=seconds)
    with audited(by, "pause_limit", name, reason) as attempt:
        store.pause(terms, round(seconds * 1_000_000))
        attempt.outcome = f"paused for {seconds:g} s, {_UNTIL.format(until)}"
    return LimitResult(name, LimitOutcome.PAUSED, seconds=float(seconds))


def resume_limit(name: str, *, by: Actor, reason: str = "") -> LimitResult:
    """End a pause, whatever its origin. Waiting callers proceed in their order, within some seconds.

    Raises as ``get_limit`` does.
    """
    known = _find_known_limit(name)
    if known is None:
        return LimitResult(name, LimitOutcome.UNKNOWN)
    store, terms, before = known
    if not before.paused:
        return LimitResult(name, LimitOutcome.NOT_PAUSED)
    with audited(by, "resume_limit", name, reason) as attempt:
        store.pause(terms, 0)
        attempt.outcome = f"resumed, {before.paused:.0f} s before the end of its pause"
    return LimitResult(name, LimitOutcome.RESUMED, seconds=before.paused)


class _KnownLimit(NamedTuple):
    """A limiter with its terms and its present usage."""

    store: RateStore
    terms: Terms
    usage: RateUsage


def _find_known_limit(name: str) -> _KnownLimit | None:
    name, store = clean_limiter_name(name), get_backend().rates
    terms = _read_terms(store, [name]).get(name)
    return None if terms is None else _KnownLimit(store, terms, usage_of(terms, store.usage(terms)))


def _read_terms(store: RateStore, names: Sequence[str]) -> Mapping[str, Terms]:
    """Return the terms that the last callers stored, or else those of the settings."""
    found = dict(store.terms(names))
    configured = get_settings().RATE_LIMITS
    for name in names:
        limiter, tenant = split_tenant(name)
        if name in found or limiter not in configured:
            continue
        limit = parse_options(limiter, configured[limiter])
        if tenant is None:
            found[name] = limit.terms(name)
        elif limit.tenants:
            found[name] = limit.terms(name, limit.tenants)
    return found


def _is_used(store: RateStore, name: str) -> bool:
    """Return whether a limiter, or a tenant, has been used lately."""
    limiter, tenant = split_tenant(name)
    return bool(_read_terms(store, [name])) or name in store.names(MAX_NAMES, of="" if tenant is None else limiter)


def _read_views(store: RateStore, names: Sequence[str]) -> list[LimitView]:
    terms, tenants = _read_terms(store, names), store.count_tenants(names)
    known = list(terms.values())
    usages = {one.name: usage_of(one, found) for one, found in zip(known, store.usages(known), strict=True)}
    return [_make_view(name, terms.get(name), usages.get(name), tenants.get(name, 0)) for name in names]


def _make_view(name: str, terms: Terms | None, usage: RateUsage | None, tenants: int) -> LimitView:
    limiter, tenant = split_tenant(name)
    return LimitView(
        name=name,
        limiter=limiter,
        tenant=tenant,
        configured=name in get_settings().RATE_LIMITS,
        rates=() if terms is None else tuple(map(str, terms.rates)),
        state=_state_of(usage),
        usage=usage,
        waiting=0 if usage is None else _count_waiting(usage),
        tenants=tenants,
    )


def _state_of(usage: RateUsage | None) -> LimitState:
    if usage is None:
        return LimitState.IDLE
    if usage.paused:
        return LimitState.PAUSED
    return LimitState.FULL if usage.next > 0 else LimitState.OPEN


def _count_waiting(usage: RateUsage) -> int:
    return max(0, max(window.ahead for window in usage.windows) - usage.free)


def _find_pause(limit: LimitView | None, history: Sequence[Act]) -> Act | None:
    """Return the operator's action whose pause lasts; ``None``: the remote service has asked for the pause."""
    if limit is None or limit.usage is None or limit.state is not LimitState.PAUSED:
        return None
    ends = limit.usage.time + timedelta(seconds=limit.usage.paused)
    # The end was written down by the store's clock, and the store was told a moment later: some seconds at most.
    said = tuple(_UNTIL.format(ends - timedelta(seconds=late)) for late in range(10))
    pause_actions = ("pause_limit", "resume_limit", "reset_limit")
    last = next((act for act in history if act.action in pause_actions), None)
    return last if last is not None and last.action == "pause_limit" and last.outcome.endswith(said) else None
