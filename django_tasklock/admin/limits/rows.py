"""Limiters as the templates show them, completely formatted."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import NamedTuple

from django.utils.safestring import SafeString
from django.utils.translation import gettext as _, ngettext

from django_tasklock.admin.formats import NONE, Bar, bar_of, host_and_pid, moment, soft, time_left
from django_tasklock.operations.durations import format_duration
from django_tasklock.operations.limits.values import LimitState, LimitView, PermitsView
from django_tasklock.operations.values import Act
from django_tasklock.rates.usage import RateUsage, WindowUsage
from django_tasklock.types import LockInfo

SYMBOLS = {LimitState.OPEN: "●", LimitState.FULL: "◐", LimitState.PAUSED: "‖", LimitState.IDLE: "○"}
"""Symbols shown beside the labels of the states."""


class Window(NamedTuple):
    """The usage of one rate. ``full``: the value from which the bar is coloured as nearly full."""

    rate: str
    used: str
    ahead: str
    limit: str
    value: str
    of: str
    full: str


@dataclass(frozen=True)
class LimitRow:
    """A rate limit in a list, or at the head of its own page."""

    name: str
    label: SafeString
    url: str
    state: LimitState
    look: str
    symbol: str
    word: str
    rates: str
    algorithm: str
    windows: tuple[Window, ...]
    waiting: str
    last: str
    """When the last waiting unit may proceed; empty if none waits."""
    next: str
    refused: str
    share: str
    lowered: bool
    until: str
    """When the pause ends; empty if it is not paused."""
    tenants: str


class Member(NamedTuple):
    """A member that has a permit."""

    info: LockInfo
    where: str
    since: str
    held_for: str
    left: str
    bar: Bar | None
    lease: str


@dataclass(frozen=True)
class PermitsRow:
    """One concurrency limiter."""

    name: str
    label: SafeString
    url: str
    taken: str
    bar: Window | None
    waiting: str
    members: tuple[Member, ...]


def limit_row(view: LimitView, address_of: Callable[[str], str]) -> LimitRow:
    """Format a rate limit; ``address_of`` returns the URL of a limiter's page."""
    usage = view.usage
    shown = view.name if view.tenant is None else view.tenant or _("(the default tenant)")
    return LimitRow(
        name=view.name,
        label=soft(shown),
        url=address_of(view.name),
        state=view.state,
        look=view.state.value,
        symbol=SYMBOLS[view.state],
        word=str(view.state.label),
        rates=", ".join(view.rates) or NONE,
        algorithm=view.algorithm,
        windows=() if usage is None else tuple(map(_window, usage.windows)),
        waiting=str(view.waiting),
        last=_("the last in %(span)s") % {"span": format_duration(usage.tail)} if usage and view.waiting else "",
        next=NONE if usage is None else _("in %(span)s") % {"span": _wait(usage.next)} if usage.next else _("at once"),
        refused=NONE if usage is None else str(usage.refused),
        share=NONE if usage is None else percent(usage.share),
        lowered=usage is not None and usage.share < 1,
        until=_until(usage) if usage and usage.paused else "",
        tenants=str(view.tenants) if view.tenants else NONE,
    )


def permits_row(view: PermitsView, address_of: Callable[[str], str]) -> PermitsRow:
    """Format a concurrency limiter; ``address_of`` returns the URL of a limiter's page."""
    of = {"used": view.used, "limit": view.limit or 0}
    bar = None
    if view.limit:
        bar = Window("", "", "", "", str(min(view.used, view.limit)), str(view.limit), _nearly(view.limit))
    return PermitsRow(
        name=view.name,
        label=soft(view.name),
        url=address_of(view.name),
        taken=_("%(used)d of %(limit)d") % of if view.limit else str(view.used),
        bar=bar,
        waiting=str(view.waiting),
        members=tuple(map(_member, view.members)),
    )


def sentences(view: LimitView, paused_by: Act | None = None) -> list[str]:
    """Return the state of a rate limit in sentences. ``paused_by``: the operator's action that paused it."""
    usage = view.usage
    if usage is None:
        return [_("None of its calls counts any more, and its rates are not known until it is used again.")]
    values = {"next": _wait(usage.next), "span": _wait(usage.paused), "until": _until(usage)}
    if view.state is LimitState.PAUSED and paused_by is not None:
        values |= {"who": paused_by.actor, "at": moment(paused_by.at), "reason": paused_by.reason or NONE}
        found = [
            _("%(who)s paused it at %(at)s: no call starts for %(span)s, until %(until)s. Reason: %(reason)s") % values
        ]
    elif view.state is LimitState.PAUSED:
        found = [_("The remote service asked for a pause: no call starts for %(span)s, until %(until)s.") % values]
    elif view.state is LimitState.FULL:
        found = [_("A call made now would wait for %(next)s.") % values]
    else:
        found = [_("A call made now would start at once.")]
    if view.waiting:
        text = ngettext(
            "%(count)d unit is booked ahead, the last in %(span)s.",
            "%(count)d units are booked ahead, the last in %(span)s.",
            view.waiting,
        )
        found.append(text % {"count": view.waiting, "span": _wait(usage.tail)})
    if usage.share < 1:
        found.append(
            _("Only %(share)s of its limit is in force, after pushback or by an operator.")
            % {"share": percent(usage.share)}
        )
    return found


def percent(share: float) -> str:
    """Format ``0.7`` as ``70 %``."""
    return f"{share * 100:.4g} %"


def _window(window: WindowUsage) -> Window:
    return Window(
        rate=window.rate,
        used=_("%(used)d of %(limit)d") % {"used": window.used, "limit": window.limit},
        ahead=str(window.ahead),
        limit=str(window.limit),
        value=str(min(window.used, window.limit)),
        of=str(window.limit),
        full=_nearly(window.limit),
    )


def _nearly(limit: int) -> str:
    return f"{limit * 0.9:g}"


def _wait(seconds: float) -> str:
    return format_duration(seconds) if seconds >= 1 else _("less than a second")


def _until(usage: RateUsage) -> str:
    return moment(usage.time + timedelta(seconds=usage.paused))


def _member(info: LockInfo) -> Member:
    return Member(
        info=info,
        where=host_and_pid(info.holder, info.task, info.task_id),
        since=moment(info.acquired_at),
        held_for=format_duration(info.held_for),
        left=time_left(info),
        bar=bar_of(info),
        lease=_("lease: %(span)s") % {"span": format_duration(info.ttl or 0)},
    )
