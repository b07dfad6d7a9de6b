"""How the operators' pages say a value: times, spans, shares, states, bars, and names that a line may break."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import timedelta
from typing import Any, Final

from django import template
from django.utils.html import escape, format_html
from django.utils.safestring import SafeString, mark_safe
from django.utils.translation import gettext as _, gettext_lazy, ngettext

from django_tasklock.operations.datetimes import format_datetime
from django_tasklock.operations.durations import format_duration, format_wait
from django_tasklock.operations.limits.values import LimitState, LimitView
from django_tasklock.operations.values import LockState, LockView
from django_tasklock.rates.usage import RateUsage
from django_tasklock.types import LockInfo

register = template.Library()

NO_VALUE: Final = "\N{EN DASH}"
"""Shown for a missing or unknown value."""
SYMBOLS: Mapping[str, str] = {
    LockState.LIVE: "●",
    LockState.EXPIRING: "◐",
    LockState.NO_EXPIRY: "∞",
    LockState.ORPHANED: "○",
    LimitState.OPEN: "●",
    LimitState.FULL: "◐",
    LimitState.PAUSED: "‖",
    LimitState.IDLE: "○",
}
"""Symbols beside the words of the states, which say it alone as well."""
ACTIONS: Mapping[str, Any] = {
    "release": gettext_lazy("released it"),
    "ask": gettext_lazy("asked for it"),
    "sweep": gettext_lazy("swept it"),
    "requeue": gettext_lazy("let a parked message wait again"),
    "publish": gettext_lazy("published a parked message"),
    "discard": gettext_lazy("discarded a parked message"),
    "reset_limit": gettext_lazy("reset it"),
    "change_limit": gettext_lazy("changed its limit"),
    "pause_limit": gettext_lazy("paused it"),
    "resume_limit": gettext_lazy("ended its pause"),
    "release_permit": gettext_lazy("released a permit"),
}
"""The actions in the audit trail."""
MESSAGE_STATES: Mapping[str, Any] = {
    "parked": gettext_lazy("parked"),
    "promoted": gettext_lazy("on its way"),
    "dead": gettext_lazy("dead"),
}
"""The states of parked messages."""
_BREAK_POINTS = re.compile(r"([._:/@-])(?=[^._:/@-])")

register.filter("duration", format_duration)
register.filter("wait", format_wait)
register.filter("moment", format_datetime)


@register.filter
def percent(share: float) -> str:
    """Say ``0.7`` as ``70 %``."""
    return f"{share * 100:.4g} %"


@register.filter
def breaks(text: object) -> SafeString:
    """Escape a name and mark where a line may break it, as it has no spaces."""
    return mark_safe(_BREAK_POINTS.sub(r"\1<wbr>", escape(text)))  # noqa: S308


@register.filter
def action(code: str) -> str:
    """Say an action of the audit trail; its code if it comes from a later version."""
    return str(ACTIONS.get(code, code))


@register.filter
def message_state(code: str) -> str:
    """Say the state of a parked message; its code if it comes from a later version."""
    return str(MESSAGE_STATES.get(code, code))


# Locks, limiters and members


@register.filter
def word(view: LockView | LimitView | None) -> str:
    """Say the state of a lock or a limiter; ``None``: the lock is free."""
    if view is None:
        return _("free")
    return _("holder has ended") if isinstance(view, LockView) and view.dead else str(view.state.label)


@register.filter
def state(view: LockView | LimitView | None) -> SafeString:
    """Show the state: the word says it; symbol and colour only help."""
    code = "free" if view is None else "dead" if isinstance(view, LockView) and view.dead else view.state.value
    return format_html(
        '<span class="tasklock-state tasklock-state-{}"><span aria-hidden="true">{}</span> {}</span>',
        code,
        {"free": "○", "dead": "✕"}.get(code) or SYMBOLS[code],
        word(view),
    )


@register.filter
def process(info: LockInfo) -> str:
    """Say ``host:pid``: the holder without its task, which is shown beside it."""
    return info.holder.removesuffix(f" ({info.task}[{info.task_id}])")


@register.filter
def held_since(info: LockInfo) -> str:
    """Say when a lock or a permit was taken; as an item of the mapping that ``info`` is, that would be a text."""
    return format_datetime(info.acquired_at)


@register.filter
def left(held: LockView | LockInfo) -> str:
    """Say how long a lock or a permit may still be held."""
    info = held.info if isinstance(held, LockView) else held
    if isinstance(held, LockView):
        if held.state is LockState.ORPHANED:
            return _("ended %(span)s ago") % {"span": format_duration(held.lapsed_for or 0)}
        if held.dead and info.ttl is not None:
            return format_duration(info.ttl)  # its lease is not renewed any more
    if info.ttl is None:
        return _("no limit")
    if info.without_timeout:
        return _("until it is released")
    return format_duration(info.time_left) if info.time_left > 0 else _("past its timeout")


@register.filter
def lease(held: LockView | LockInfo) -> str:
    """Say how long the lease lasts; empty if it is over."""
    info = held.info if isinstance(held, LockView) else held
    if isinstance(held, LockView) and held.state is LockState.ORPHANED:
        return ""
    return _("never expires") if info.ttl is None else _("lease: %(span)s") % {"span": format_duration(info.ttl)}


@register.filter
def left_meter(held: LockView | LockInfo, style: str = "") -> SafeString:
    """Show the time left of the timeout as a bar; nothing if no timeout ends the hold."""
    info = held.info if isinstance(held, LockView) else held
    over = isinstance(held, LockView) and (held.state in (LockState.ORPHANED, LockState.NO_EXPIRY) or held.dead)
    if over or info.without_timeout or info.ttl is None or info.time_left < 1:
        return SafeString()
    whole = int(info.held_for + info.time_left)
    return format_html(
        '<meter class="{}" min="0" max="{}" low="{}" value="{}" aria-label="{}">{}</meter>',
        style, whole, whole // 10, int(info.time_left), _("Time left"), left(held),
    )  # fmt: skip


@register.simple_tag
def use_meter(used: int, limit: int, label: str, style: str = "") -> SafeString:
    """Show how much of a limit is used as a bar, which changes its colour at nine tenths."""
    return format_html(
        '<meter class="{}" min="0" max="{}" high="{}" optimum="0" value="{}" aria-label="{}">{}</meter>',
        style, limit, f"{limit * 0.9:g}", min(used, limit), label, of(used, limit),
    )  # fmt: skip


@register.filter
def of(used: int, limit: int | None) -> str:
    """Say how much of a limit is used."""
    return _("%(used)d of %(limit)d") % {"used": used, "limit": limit} if limit else str(used)


@register.filter
def behind(view: LockView) -> str:
    """Say how many callers and messages wait for a lock; empty if none does."""
    parts = []
    if view.info.waiting:
        parts.append(
            ngettext("%(count)d waiting", "%(count)d waiting", view.info.waiting) % {"count": view.info.waiting}
        )
    if view.parked:
        parts.append(ngettext("%(count)d parked", "%(count)d parked", view.parked) % {"count": view.parked})
    return ", ".join(parts)


@register.filter
def notes(view: LockView) -> list[str]:
    """Say what else is to be known of the holder of a lock."""
    found = [_("its process has ended")] if view.dead else []
    if view.asked_for is not None:
        found.append(_("asked to give it back %(span)s ago") % {"span": format_duration(view.asked_for)})
    return found


@register.filter
def shown_name(view: LimitView) -> str:
    """Say the name of a limiter, or of a tenant without its limiter."""
    return view.name if view.tenant is None else view.tenant or _("(the default tenant)")


@register.filter
def next_call(usage: RateUsage | None) -> str:
    """Say when the next call may start."""
    if usage is None:
        return NO_VALUE
    return _("in %(span)s") % {"span": format_wait(usage.next)} if usage.next else _("at once")


@register.filter
def pause_end(usage: RateUsage) -> str:
    """Say when a pause ends."""
    return format_datetime(usage.time + timedelta(seconds=usage.paused))


# One line each, for a page that asks whether an action is meant


def lock_line(view: LockView) -> str:
    """Say what a lock is, on one line."""
    info = view.info
    values = {"name": info.name, "state": word(view), "holder": info.holder, "span": format_duration(info.held_for)}
    parts = [_("%(name)s: %(state)s, held by %(holder)s for %(span)s") % values, *notes(view)]
    parts += [_("time left: %(left)s") % {"left": left(view)}, lease(view), behind(view)]
    return ", ".join(filter(None, [*parts, str(view.row or ""), info.fingerprint]))


def limit_line(view: LimitView) -> str:
    """Say what a rate limit is, on one line."""
    windows = view.usage.windows if view.usage else ()
    parts = [f"{view.name}: {word(view)}"]
    parts += (f"{window.rate}: {of(window.used, window.limit)}" for window in windows)
    parts.append(ngettext("%(count)d waiting", "%(count)d waiting", view.waiting) % {"count": view.waiting})
    if view.usage:
        parts.append(_("limit in force: %(share)s") % {"share": percent(view.usage.share)})
    return ", ".join(parts)


def member_line(info: LockInfo) -> str:
    """Say who has a permit, on one line."""
    values = {"holder": info.holder, "span": format_duration(info.held_for), "left": left(info)}
    parts = [_("held by %(holder)s for %(span)s") % values, _("time left: %(left)s") % values, info.fingerprint]
    return ", ".join(parts)
