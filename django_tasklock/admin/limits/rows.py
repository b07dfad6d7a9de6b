"""Limiters as the templates show them, completely formatted."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import NamedTuple

from django.utils.safestring import SafeString
from django.utils.translation import gettext as _, ngettext

from django_tasklock.admin.formats import (
    NO_VALUE,
    Meter,
    escape_with_breaks,
    format_datetime,
    host_and_pid,
    meter_of,
    time_left,
)
from django_tasklock.operations.durations import format_duration
from django_tasklock.operations.limits.values import LimitState, LimitView, PermitsView
from django_tasklock.operations.values import Act
from django_tasklock.rates.usage import RateUsage, WindowUsage
from django_tasklock.types import LockInfo

SYMBOLS = {LimitState.OPEN: "●", LimitState.FULL: "◐", LimitState.PAUSED: "‖", LimitState.IDLE: "○"}
"""Symbols shown beside the labels of the states."""


class WindowRow(NamedTuple):
    """The usage of one rate. ``full``: the value from which the bar is coloured as nearly full."""

    rate: str
    used: str
    ahead: str
    limit: str
    value: str
    max: str
    high: str


@dataclass(frozen=True)
class LimitRow:
    """A rate limit in a list, or at the head of its own page."""

    name: str
    label: SafeString
    url: str
    state: LimitState
    style: str
    symbol: str
    state_label: str
    rates: str
    algorithm: str
    windows: tuple[WindowRow, ...]
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


class MemberRow(NamedTuple):
    """A member that has a permit."""

    info: LockInfo
    process: str
    since: str
    held_for: str
    time_left: str
    meter: Meter | None
    lease: str


@dataclass(frozen=True)
class PermitsRow:
    """One concurrency limiter."""

    name: str
    label: SafeString
    url: str
    taken: str
    meter: WindowRow | None
    waiting: str
    members: tuple[MemberRow, ...]


def limit_row(view: LimitView, url_of: Callable[[str], str]) -> LimitRow:
    """Format a rate limit; ``url_of`` returns the URL of a limiter's page."""
    usage = view.usage
    shown = view.name if view.tenant is None else view.tenant or _("(the default tenant)")
    return LimitRow(
        name=view.name,
        label=escape_with_breaks(shown),
        url=url_of(view.name),
        state=view.state,
        style=view.state.value,
        symbol=SYMBOLS[view.state],
        state_label=str(view.state.label),
        rates=", ".join(view.rates) or NO_VALUE,
        algorithm=view.algorithm,
        windows=() if usage is None else tuple(map(_window_row, usage.windows)),
        waiting=str(view.waiting),
        last=_("the last in %(span)s") % {"span": format_duration(usage.tail)} if usage and view.waiting else "",
        next=NO_VALUE
        if usage is None
        else _("in %(span)s") % {"span": _format_wait(usage.next)}
        if usage.next
        else _("at once"),
        refused=NO_VALUE if usage is None else str(usage.refused),
        share=NO_VALUE if usage is None else format_percent(usage.share),
        lowered=usage is not None and usage.share < 1,
        until=_format_pause_end(usage) if usage and usage.paused else "",
        tenants=str(view.tenants) if view.tenants else NO_VALUE,
    )


def permits_row(view: PermitsView, url_of: Callable[[str], str]) -> PermitsRow:
    """Format a concurrency limiter; ``url_of`` returns the URL of a limiter's page."""
    values = {"used": view.used, "limit": view.limit or 0}
    meter = None
    if view.limit:
        meter = WindowRow("", "", "", "", str(min(view.used, view.limit)), str(view.limit), _warning_level(view.limit))
    return PermitsRow(
        name=view.name,
        label=escape_with_breaks(view.name),
        url=url_of(view.name),
        taken=_("%(used)d of %(limit)d") % values if view.limit else str(view.used),
        meter=meter,
        waiting=str(view.waiting),
        members=tuple(map(_member_row, view.members)),
    )


def explain_limit(view: LimitView, paused_by: Act | None = None) -> list[str]:
    """Return the state of a rate limit in sentences. ``paused_by``: the operator's action that paused it."""
    usage = view.usage
    if usage is None:
        return [_("None of its calls counts any more, and its rates are not known until it is used again.")]
    values = {"next": _format_wait(usage.next), "span": _format_wait(usage.paused), "until": _format_pause_end(usage)}
    if view.state is LimitState.PAUSED and paused_by is not None:
        values |= {"who": paused_by.actor, "at": format_datetime(paused_by.at), "reason": paused_by.reason or NO_VALUE}
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
        found.append(text % {"count": view.waiting, "span": _format_wait(usage.tail)})
    if usage.share < 1:
        found.append(
            _("Only %(share)s of its limit is in force, after pushback or by an operator.")
            % {"share": format_percent(usage.share)}
        )
    return found


def format_percent(share: float) -> str:
    """Format ``0.7`` as ``70 %``."""
    return f"{share * 100:.4g} %"


def _window_row(window: WindowUsage) -> WindowRow:
    return WindowRow(
        rate=window.rate,
        used=_("%(used)d of %(limit)d") % {"used": window.used, "limit": window.limit},
        ahead=str(window.ahead),
        limit=str(window.limit),
        value=str(min(window.used, window.limit)),
        max=str(window.limit),
        high=_warning_level(window.limit),
    )


def _warning_level(limit: int) -> str:
    return f"{limit * 0.9:g}"


def _format_wait(seconds: float) -> str:
    return format_duration(seconds) if seconds >= 1 else _("less than a second")


def _format_pause_end(usage: RateUsage) -> str:
    return format_datetime(usage.time + timedelta(seconds=usage.paused))


def _member_row(info: LockInfo) -> MemberRow:
    return MemberRow(
        info=info,
        process=host_and_pid(info.holder, info.task, info.task_id),
        since=format_datetime(info.acquired_at),
        held_for=format_duration(info.held_for),
        time_left=time_left(info),
        meter=meter_of(info),
        lease=_("lease: %(span)s") % {"span": format_duration(info.ttl or 0)},
    )
