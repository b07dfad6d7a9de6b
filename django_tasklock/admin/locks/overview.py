"""The overview: the present state, and a chart of the last day."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, NamedTuple

from django.core.exceptions import ImproperlyConfigured
from django.db.models import Model
from django.http import HttpRequest, HttpResponse
from django.utils.formats import date_format
from django.utils.timezone import localtime
from django.utils.translation import gettext as _

from django_tasklock import counts
from django_tasklock.admin.base import StoreAdmin, may_view, page_url
from django_tasklock.admin.plots import BarChart, Series
from django_tasklock.counts import Count
from django_tasklock.exceptions import BackendUnavailable
from django_tasklock.models import ParkedMessage, RateLimit, SweepEntry
from django_tasklock.operations.durations import format_duration
from django_tasklock.operations.state import Gauges, read_gauges
from django_tasklock.operations.sweep.runs import OVERDUE
from django_tasklock.templatetags.tasklock import NO_VALUE

HOURS = 24


class Figure(NamedTuple):
    """A figure of the present state, with the URL of the page with details."""

    label: str
    value: str
    url: str = ""
    alarming: bool = False


def show(admin: StoreAdmin, request: HttpRequest) -> HttpResponse:
    """Show the overview. Raises ``BackendUnavailable``."""
    gauges = read_gauges()
    if not gauges.store_up:
        raise BackendUnavailable("the store could not be asked")
    hours = read_day()
    context: dict[str, Any] = {
        "figures": [*_figures(admin, request, gauges), *_day_figures(hours or {})],
        "counted": hours is not None,
        "plot": make_chart(hours or {}),
    }
    return admin.page(request, "overview", _("Overview"), **context)


def read_day() -> Mapping[int, Sequence[Count]] | None:
    """Return the counts of the last day by hour; ``None`` if the database does not have them."""
    try:
        return counts.read_hours(HOURS)
    except (BackendUnavailable, ImproperlyConfigured):  # the page of the locks does not need that database
        return None


def make_chart(hours: Mapping[int, Sequence[Count]]) -> BarChart:
    """Return the chart of the requests for locks, hour by hour, by what became of them."""
    last = int(time.time()) // 3600 * 3600
    begins = [last - back * 3600 for back in reversed(range(HOURS))]
    parts = [
        Series(label, [sum_of(hours.get(at, ()), event) for at in begins])
        for label, event in (
            (_("granted at once"), counts.ACQUIRED),
            (_("granted after a wait"), counts.WAITED),
            (_("busy"), counts.CONFLICT),
        )
    ]
    return BarChart(_("Requests for locks in the last day"), list(map(_format_hour, begins)), parts, format_number)


def sum_of(found: Sequence[Count], event: str) -> int:
    """Return how often this event happened, whatever its kind and duration."""
    return sum(one.number for one in found if one.event.partition(":")[0] == event)


def _format_hour(at: int) -> str:
    local: Any = localtime(datetime.fromtimestamp(at, UTC))
    return str(date_format(local, "H:i"))


def _day_figures(hours: Mapping[int, Sequence[Count]]) -> list[Figure]:
    day = [one for found in hours.values() for one in found]
    lost, forced = sum_of(day, counts.LOST), sum_of(day, counts.FORCED)
    return [
        Figure(_("Lost in a day"), format_number(lost), alarming=bool(lost)),
        Figure(_("Released by force in a day"), format_number(forced)),
    ]


def format_number(value: float) -> str:
    """Format a number."""
    return f"{value:.0f}" if value == int(value) else f"{value:g}"


def format_seconds(value: float) -> str:
    """Format a duration, including durations under a second."""
    if value >= 10:
        return format_duration(value)
    return _("%(ms)d ms") % {"ms": round(value * 1000)} if value < 1 else _("%(s).1f s") % {"s": value}


def _figures(admin: StoreAdmin, request: HttpRequest, gauges: Gauges) -> list[Figure]:
    locks, site = admin.page_url("changelist"), admin.admin_site

    def list_url(model: type[Model]) -> str:
        return page_url(site, "changelist", model=model) if may_view(site, request, model) else ""

    def format_count(value: float | None) -> str:
        return NO_VALUE if value is None else format_number(value)

    def format_time_span(value: float | None) -> str:
        return format_seconds(value) if value else NO_VALUE

    paused = sum(limiter.paused > 0 for limiter in gauges.limiters)
    near = sum((limiter.ratio or 0) >= 0.9 for limiter in gauges.limiters)
    age = gauges.last_sweep_age
    return [
        Figure(_("Held now"), format_count(gauges.held), locks),
        Figure(_("Waiting for them"), format_count(gauges.waiting), locks + "?waiting=1"),
        Figure(_("Longest held"), format_time_span(gauges.longest_held), locks),
        Figure(_("Holder has ended"), format_count(gauges.dead), locks + "?state=dead", bool(gauges.dead)),
        Figure(_("Orphaned"), format_count(gauges.orphaned), locks + "?state=orphaned", bool(gauges.orphaned)),
        Figure(_("No expiry"), format_count(gauges.no_expiry), locks + "?state=no_expiry", bool(gauges.no_expiry)),
        Figure(_("Parked messages"), format_count(gauges.parked), list_url(ParkedMessage)),
        Figure(_("Longest parked"), format_time_span(gauges.oldest_parked), list_url(ParkedMessage)),
        Figure(_("Limiters near their limit"), str(near), list_url(RateLimit), bool(near)),
        Figure(_("Limiters paused"), str(paused), list_url(RateLimit), bool(paused)),
        Figure(
            _("Last sweep"),
            _("%(span)s ago") % {"span": format_duration(age)} if age is not None else _("never"),
            list_url(SweepEntry),
            age is None or age > OVERDUE,
        ),
    ]
