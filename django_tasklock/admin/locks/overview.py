"""The overview: the present state, and charts of the last hours or days."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

from django.db.models import Model
from django.http import HttpRequest, HttpResponse
from django.utils.formats import date_format
from django.utils.timezone import localtime
from django.utils.translation import gettext as _

from django_tasklock.admin.base import StoreAdmin, is_fragment, may_view, page_url, query_string
from django_tasklock.admin.formats import NO_VALUE
from django_tasklock.admin.locks.listing import Choice
from django_tasklock.admin.plots import BarChart, Series
from django_tasklock.exceptions import BackendUnavailable
from django_tasklock.models import ParkedMessage, RateLimit, SweepEntry
from django_tasklock.operations.durations import format_duration
from django_tasklock.operations.metrics import Gauges, Histogram, HourOfCounts, read_gauges, read_hours
from django_tasklock.operations.optional import if_supported

HOURS, DAYS = 24, 14
KINDS = 12
"""Kinds of locks on the page: those with the most releases."""


class Figure(NamedTuple):
    """A figure of the present state, with the URL of the page with details."""

    label: str
    value: str
    url: str = ""
    alarming: bool = False


@dataclass(frozen=True)
class KindRow:
    """How long the locks of one kind were held."""

    kind: str
    count: str
    median: str
    """The median."""
    percentile_95: str
    """The 95th percentile."""
    mean: str
    plot: BarChart


def show(admin: StoreAdmin, request: HttpRequest) -> HttpResponse:
    """Show the overview, or its changing part with ``?fragment=1``. Raises ``BackendUnavailable``."""
    days = request.GET.get("over", "") == "days"
    gauges = read_gauges()
    if not gauges.store_up:
        raise BackendUnavailable("the store could not be asked")
    found = if_supported(lambda: read_hours(DAYS * 24 if days else HOURS))
    hours = found or []
    periods = group_by_day(hours) if days else group_by_hour(hours)
    context: dict[str, Any] = {
        "figures": _figures(admin, request, gauges),
        "counted": found is not None,
        "ranges": [
            Choice(_("the last 24 hours"), "?", not days),
            Choice(_("the last 14 days"), query_string({"over": "days"}), days),
        ],
        "plots": [plot(periods) for plot in (_granted_chart, _conflict_chart, _end_chart, _wait_chart)],
        "kinds": _kind_rows(hours),
        "refresh_url": query_string({"over": "days" if days else ""}),
    }
    template = "overview_fragment" if is_fragment(request) else "overview"
    return admin.page(request, template, _("Overview"), **context)


class Period(NamedTuple):
    """The counts of an hour, or of a day."""

    label: str
    hours: Sequence[HourOfCounts]


def group_by_hour(hours: Sequence[HourOfCounts]) -> list[Period]:
    """Return the last hours, including those without counts."""
    current_hour = datetime.now(UTC).replace(minute=0, second=0, microsecond=0)
    found = {hour.begins: hour for hour in hours}
    begins = [current_hour - timedelta(hours=back) for back in reversed(range(HOURS))]
    return [Period(_format_time(at, "H:i"), [found[at]] if at in found else []) for at in begins]


def group_by_day(hours: Sequence[HourOfCounts]) -> list[Period]:
    """Return the last days in the active time zone."""
    today = localtime(datetime.now(UTC)).date()
    days = [today - timedelta(days=back) for back in reversed(range(DAYS))]
    found: dict[Any, list[HourOfCounts]] = {day: [] for day in days}
    for hour in hours:
        found.setdefault(localtime(hour.begins).date(), []).append(hour)
    return [Period(str(date_format(day, "m-d")), found[day]) for day in days]


def _format_time(at: datetime, date_format_code: str) -> str:
    local: Any = localtime(at)
    return str(date_format(local, date_format_code))


def _granted_chart(periods: Sequence[Period]) -> BarChart:
    def waited(hour: HourOfCounts) -> float:
        return sum(sum(kind.wait.buckets[1:]) for kind in hour.totals.kinds)

    def at_once(hour: HourOfCounts) -> float:
        return sum(kind.wait.buckets[0] for kind in hour.totals.kinds)

    parts = [_make_series(_("at once"), periods, at_once), _make_series(_("after a wait"), periods, waited)]
    return _make_chart(_("Locks granted"), periods, parts)


def _conflict_chart(periods: Sequence[Period]) -> BarChart:
    def timed_out(hour: HourOfCounts) -> float:
        return sum(kind.conflicts.get("timeout", 0) for kind in hour.totals.kinds)

    def busy(hour: HourOfCounts) -> float:
        return sum(kind.conflicted for kind in hour.totals.kinds) - timed_out(hour)

    parts = [_make_series(_("busy"), periods, busy), _make_series(_("gave up waiting"), periods, timed_out)]
    return _make_chart(_("Conflicts"), periods, parts)


def _end_chart(periods: Sequence[Period]) -> BarChart:
    def expired(hour: HourOfCounts) -> float:
        return sum(kind.expired + kind.deleted for kind in hour.totals.kinds)

    def forced(hour: HourOfCounts) -> float:
        return sum(kind.forced for kind in hour.totals.kinds)

    parts = [_make_series(_("lease ran out"), periods, expired), _make_series(_("taken away"), periods, forced)]
    return _make_chart(_("Holds that did not end with a release"), periods, parts)


def _wait_chart(periods: Sequence[Period]) -> BarChart:
    values = [
        merge([kind.wait for hour in period.hours for kind in hour.totals.kinds]).quantile(0.95) for period in periods
    ]
    parts = [Series(_("95th percentile"), [value or 0.0 for value in values])]
    return BarChart(_("Waiting for a lock"), [period.label for period in periods], parts, format_seconds)


def _make_series(label: str, periods: Sequence[Period], count: Callable[[HourOfCounts], float]) -> Series:
    return Series(label, [sum(map(count, period.hours)) for period in periods])


def _make_chart(title: str, periods: Sequence[Period], parts: Sequence[Series]) -> BarChart:
    return BarChart(title, [period.label for period in periods], parts, format_number)


def merge(histograms: Sequence[Histogram]) -> Histogram:
    """Return the sum of several histograms."""
    if not histograms:
        return Histogram()
    buckets = tuple(map(sum, zip(*(one.buckets for one in histograms), strict=True)))
    return Histogram(buckets, sum(one.seconds for one in histograms))


def _kind_rows(hours: Sequence[HourOfCounts]) -> list[KindRow]:
    found: dict[str, list[Histogram]] = {}
    for hour in hours:
        for kind in hour.totals.kinds:
            if kind.released:
                found.setdefault(kind.kind, []).append(kind.hold)
    holds = sorted(
        ((kind, merge(histograms)) for kind, histograms in found.items()), key=lambda one: (-one[1].count, one[0])
    )
    return [_kind_row(kind, hold) for kind, hold in holds[:KINDS]]


def _kind_row(kind: str, hold: Histogram) -> KindRow:
    labels = [_("up to %(span)s") % {"span": format_seconds(bound)} for bound in hold.bounds]
    labels.append(_("more than %(span)s") % {"span": format_seconds(hold.bounds[-1])})
    name = kind or _("(without a kind)")
    title = _("How long %(kind)s was held") % {"kind": name}
    return KindRow(
        kind=name,
        count=format_number(hold.count),
        median=format_seconds(hold.quantile(0.5) or 0),
        percentile_95=format_seconds(hold.quantile(0.95) or 0),
        mean=format_seconds(hold.mean or 0),
        plot=BarChart(title, labels, [Series(_("holds"), hold.buckets)], format_number),
    )


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
            _("%(span)s ago") % {"span": format_duration(age)} if age is not None else NO_VALUE,
            list_url(SweepEntry),
        ),
    ]
