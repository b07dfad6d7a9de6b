"""Why a rate limit is in its state, in sentences."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from django.utils.translation import gettext as _, ngettext

from django_tasklock.operations.datetimes import format_datetime
from django_tasklock.operations.durations import format_wait
from django_tasklock.operations.limits.values import LimitState, LimitView
from django_tasklock.operations.values import Act


def explain_limit(view: LimitView, paused_by: Act | None = None) -> list[str]:
    """Return the sentences in the active language. ``paused_by``: the operator's action that paused it."""
    usage = view.usage
    if usage is None:
        return [_("None of its calls counts any more, and its rates are not known until it is used again.")]
    values: dict[str, Any] = {
        "next": format_wait(usage.next),
        "span": format_wait(usage.paused),
        "until": format_datetime(usage.time + timedelta(seconds=usage.paused)),
    }
    if view.state is LimitState.PAUSED and paused_by is not None:
        values |= {
            "who": paused_by.actor,
            "at": format_datetime(paused_by.at),
            "reason": paused_by.reason or "\N{EN DASH}",
        }
        text = _("%(who)s paused it at %(at)s: no call starts for %(span)s, until %(until)s. Reason: %(reason)s")
    elif view.state is LimitState.PAUSED:
        text = _("The remote service asked for a pause: no call starts for %(span)s, until %(until)s.")
    elif view.state is LimitState.FULL:
        text = _("A call made now would wait for %(next)s.")
    else:
        text = _("A call made now would start at once.")
    found = [text % values]
    if view.tenant is not None:
        text = _("Its calls also need their turn at “%(limiter)s”, which all tenants share.")
        found.append(text % {"limiter": view.limiter})
    if view.waiting:
        text = ngettext(
            "%(count)d unit is booked ahead, the last in %(span)s.",
            "%(count)d units are booked ahead, the last in %(span)s.",
            view.waiting,
        )
        found.append(text % {"count": view.waiting, "span": format_wait(usage.tail)})
    if usage.share < 1:
        text = _("Only %(share)s of its limit is in force, after pushback or by an operator.")
        found.append(text % {"share": f"{usage.share * 100:.4g} %"})
    return found
