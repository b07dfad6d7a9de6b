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

from django_tasklock.admin.base import StoreAdmin, address, is_fragment, may_see, query_string
from django_tasklock.admin.formats import NONE
from django_tasklock.admin.locks.listing import Choice
from django_tasklock.admin.plots import Bars, Series
from django_tasklock.exceptions import BackendUnavailable
from django_tasklock.models import ParkedMessage, RateLimit
from django_tasklock.operations.durations import format_duration
from django_tasklock.operations.metrics import Gauges, Histogram, HourOfCounts, read_gauges, read_hours
from django_tasklock.operations.optional import if_supported

HOURS, DAYS = 24, 14
KINDS = 12
"""Kinds of locks on the page: those with the most releases."""


class Number(NamedTuple):
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
    usual: str
    """The median."""
    long: str
    """The 95th percentile."""
    mean: str
    plot: Bars


def show(admin: StoreAdmin, request: HttpRequest) -> HttpResponse:
    """Show the overview, or its changing part with ``?fragment=1``. Raises ``BackendUnavailable``."""
    days = request.GET.get("over", "") == "days"
    gauges = read_gauges()
    if not gauges.store_up:
        raise BackendUnavailable("the store could not be asked")
    found = if_supported(lambda: read_hours(DAYS * 24 if days else HOURS))
    hours = found or []
    steps = by_day(hours) if days else by_hour(hours)
    context: dict[str, Any] = {
        "numbers": _numbers(admin, request, gauges),
        "counted": found is not None,
        "spans": [
            Choice(_("the last 24 hours"), "?", not days),
            Choice(_("the last 14 days"), query_string({"over": "days"}), days),
        ],
        "plots": [plot(steps) for plot in (_granted, _conflicts, _ends, _waits)],
        "kinds": _kinds(hours),
        "here": query_string({"over": "days" if days else ""}),
    }
    template = "overview_fragment" if is_fragment(request) else "overview"
    return admin.page(request, template, _("Overview"), **context)


class Step(NamedTuple):
    """The counts of an hour, or of a day."""

    label: str
    hours: Sequence[HourOfCounts]


def by_hour(hours: Sequence[HourOfCounts]) -> list[Step]:
    """Return the last hours, including those without counts."""
    this = datetime.now(UTC).replace(minute=0, second=0, microsecond=0)
    found = {hour.begins: hour for hour in hours}
    begins = [this - timedelta(hours=back) for back in reversed(range(HOURS))]
    return [Step(_written(at, "H:i"), [found[at]] if at in found else []) for at in begins]


def by_day(hours: Sequence[HourOfCounts]) -> list[Step]:
    """Return the last days in the active time zone."""
    today = localtime(datetime.now(UTC)).date()
    days = [today - timedelta(days=back) for back in reversed(range(DAYS))]
    found: dict[Any, list[HourOfCounts]] = {day: [] for day in days}
    for hour in hours:
        found.setdefault(localtime(hour.begins).date(), []).append(hour)
    return [Step(str(date_format(day, "m-d")), found[day]) for day in days]


def _written(at: datetime, how: str) -> str:
    local: Any = localtime(at)
    return str(date_format(local, how))


def _granted(steps: Sequence[Step]) -> Bars:
    def waited(hour: HourOfCounts) -> float:
        return sum(sum(kind.wait.buckets[1:]) for kind in hour.totals.kinds)

    def at_once(hour: HourOfCounts) -> float:
        return sum(kind.wait.buckets[0] for kind in hour.totals.kinds)

    parts = [_series(_("at once"), steps, at_once), _series(_("after a wait"), steps, waited)]
    return _bars(_("Locks granted"), steps, parts)


def _conflicts(steps: Sequence[Step]) -> Bars:
    def timed_out(hour: HourOfCounts) -> float:
        return sum(kind.conflicts.get("timeout", 0) for kind in hour.totals.kinds)

    def busy(hour: HourOfCounts) -> float:
        return sum(kind.conflicted for kind in hour.totals.kinds) - timed_out(hour)

    parts = [_series(_("busy"), steps, busy), _series(_("gave up waiting"), steps, timed_out)]
    return _bars(_("Conflicts"), steps, parts)


def _ends(steps: Sequence[Step]) -> Bars:
    def expired(hour: HourOfCounts) -> float:
        return sum(kind.expired + kind.deleted for kind in hour.totals.kinds)

    def forced(hour: HourOfCounts) -> float:
        return sum(kind.forced for kind in hour.totals.kinds)

    parts = [_series(_("lease ran out"), steps, expired), _series(_("taken away"), steps, forced)]
    return _bars(_("Holds that did not end with a release"), steps, parts)


def _waits(steps: Sequence[Step]) -> Bars:
    values = [merged([kind.wait for hour in step.hours for kind in hour.totals.kinds]).quantile(0.95) for step in steps]
    parts = [Series(_("95th percentile"), [value or 0.0 for value in values])]
    return Bars(_("Waiting for a lock"), [step.label for step in steps], parts, seconds)


def _series(label: str, steps: Sequence[Step], count: Callable[[HourOfCounts], float]) -> Series:
    return Series(label, [sum(map(count, step.hours)) for step in steps])


def _bars(title: str, steps: Sequence[Step], parts: Sequence[Series]) -> Bars:
    return Bars(title, [step.label for step in steps], parts, whole)


def merged(histograms: Sequence[Histogram]) -> Histogram:
    """Return the sum of several histograms."""
    if not histograms:
        return Histogram()
    buckets = tuple(map(sum, zip(*(one.buckets for one in histograms), strict=True)))
    return Histogram(buckets, sum(one.seconds for one in histograms))


def _kinds(hours: Sequence[HourOfCounts]) -> list[KindRow]:
    found: dict[str, list[Histogram]] = {}
    for hour in hours:
        for kind in hour.totals.kinds:
            if kind.released:
                found.setdefault(kind.kind, []).append(kind.hold)
    holds = sorted(((kind, merged(some)) for kind, some in found.items()), key=lambda one: (-one[1].count, one[0]))
    return [_kind(kind, hold) for kind, hold in holds[:KINDS]]


def _kind(kind: str, hold: Histogram) -> KindRow:
    labels = [_("up to %(span)s") % {"span": seconds(bound)} for bound in hold.bounds]
    labels.append(_("more than %(span)s") % {"span": seconds(hold.bounds[-1])})
    name = kind or _("(without a kind)")
    title = _("How long %(kind)s was held") % {"kind": name}
    return KindRow(
        kind=name,
        count=whole(hold.count),
        usual=seconds(hold.quantile(0.5) or 0),
        long=seconds(hold.quantile(0.95) or 0),
        mean=seconds(hold.mean or 0),
        plot=Bars(title, labels, [Series(_("holds"), hold.buckets)], whole),
    )


def whole(value: float) -> str:
    """Format a number."""
    return f"{value:.0f}" if value == int(value) else f"{value:g}"


def seconds(value: float) -> str:
    """Format a duration, including durations under a second."""
    if value >= 10:
        return format_duration(value)
    return _("%(ms)d ms") % {"ms": round(value * 1000)} if value < 1 else _("%(s).1f s") % {"s": value}


def _numbers(admin: StoreAdmin, request: HttpRequest, gauges: Gauges) -> list[Number]:
    locks, site = admin.address("changelist"), admin.admin_site

    def page_of(model: type[Model]) -> str:
        return address(site, "changelist", model=model) if may_see(site, request, model) else ""

    def number(value: float | None) -> str:
        return NONE if value is None else whole(value)

    def time(value: float | None) -> str:
        return seconds(value) if value else NONE

    paused = sum(limiter.paused > 0 for limiter in gauges.limiters)
    near = sum((limiter.ratio or 0) >= 0.9 for limiter in gauges.limiters)
    age = gauges.last_sweep_age
    return [
        Number(_("Held now"), number(gauges.held), locks),
        Number(_("Waiting for them"), number(gauges.waiting), locks + "?waiting=1"),
        Number(_("Longest held"), time(gauges.longest_held), locks),
        Number(_("Orphaned"), number(gauges.orphaned), locks + "?state=orphaned", bool(gauges.orphaned)),
        Number(_("No expiry"), number(gauges.no_expiry), locks + "?state=no_expiry", bool(gauges.no_expiry)),
        Number(_("Parked messages"), number(gauges.parked), page_of(ParkedMessage)),
        Number(_("Longest parked"), time(gauges.oldest_parked), page_of(ParkedMessage)),
        Number(_("Limiters near their limit"), str(near), page_of(RateLimit), bool(near)),
        Number(_("Limiters paused"), str(paused), page_of(RateLimit), bool(paused)),
        Number(
            _("Last sweep"),
            _("%(span)s ago") % {"span": format_duration(age)} if age is not None else NONE,
            admin.address("sweep"),
        ),
    ]
