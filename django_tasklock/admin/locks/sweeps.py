"""The page of the sweep: a form that starts one, and the last runs, whatever started them."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from django.contrib import messages
from django.core.exceptions import PermissionDenied
from django.db import Error
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.utils.translation import gettext as _, ngettext

from django_tasklock import operations
from django_tasklock.admin.base import StoreAdmin, parse_offset
from django_tasklock.admin.formats import NO_VALUE, LabeledValue, escape_with_breaks, format_datetime
from django_tasklock.admin.forms import SweepForm
from django_tasklock.exceptions import BackendUnavailable, TaskLockError
from django_tasklock.operations.durations import format_duration
from django_tasklock.operations.sweep.options import MAX_SECONDS_IN_REQUEST
from django_tasklock.operations.sweep.report import CLASSES, Kind
from django_tasklock.operations.sweep.runs import SweepRun

logger = logging.getLogger("django_tasklock")

SHOWN = 20
"""Runs on the page."""


class RunRow(NamedTuple):
    """A run in the list."""

    run: SweepRun
    at: str
    duration: str
    url: str
    repairs: str
    """The numbers of repaired findings, by class."""


class TallyRow(NamedTuple):
    """The counts of one class of leftovers."""

    label: str
    found: int
    acted: int
    changed: int
    kept: int


def show(admin: StoreAdmin, request: HttpRequest) -> HttpResponse:
    """Show the last runs and the form; on POST sweep. Raises ``BackendUnavailable``."""
    form = SweepForm(request.POST if request.method == "POST" else None, auto_id="tasklock-%s")
    if request.method == "POST":
        if not admin.has_release_permission(request):
            raise PermissionDenied
        if form.is_valid():
            return _sweep(admin, request, form)
    return _render(admin, request, form)


def show_run(admin: StoreAdmin, request: HttpRequest, number: str) -> HttpResponse:
    """Show one run; 404 if it is not recorded."""
    run = operations.find_sweep_run(parse_offset(number))
    if run is None:
        raise Http404(f"no run {number!r} of the sweep is remembered")
    title = _("Sweep of %(at)s") % {"at": format_datetime(run.at)}
    return _render_report(admin, request, title, run.report, [LabeledValue(_("Who"), run.actor)], run.problem)


def _render(admin: StoreAdmin, request: HttpRequest, form: SweepForm) -> HttpResponse:
    try:
        runs, age, unknown = operations.sweep_runs(SHOWN), operations.last_sweep_age(), False
    except Error as error:
        logger.warning("the runs of the sweep could not be read: %s", error)
        runs, age, unknown = [], None, True
    rows = [
        RunRow(
            run,
            format_datetime(run.at),
            format_duration(run.seconds),
            admin.page_url("sweep_run", str(run.number)),
            summarize_repairs(run.report),
        )
        for run in runs
    ]
    context: dict[str, Any] = {
        "form": form,
        "rows": rows,
        "unknown": unknown,
        "ago": "" if age is None else _("%(span)s ago") % {"span": format_duration(age)},
    }
    return admin.page(request, "sweep", _("Sweep"), **context)


def _sweep(admin: StoreAdmin, request: HttpRequest, form: SweepForm) -> HttpResponse:
    given = form.cleaned_data
    try:
        report = operations.sweep(
            dry_run=given["dry_run"],
            prefix=given["begins"],
            by=admin.actor(request),
            longest=MAX_SECONDS_IN_REQUEST,
        )
    except BackendUnavailable:
        raise
    except TaskLockError as error:
        messages.error(request, _("Nothing was done: %(error)s") % {"error": error})
        return HttpResponseRedirect(admin.page_url("sweep"))
    if report.dry_run:
        return _render_report(admin, request, _("What a sweep would put right"), report.as_dict(), [])
    text = ngettext("Swept: %(count)d thing was put right.", "Swept: %(count)d things were put right.", report.swept)
    messages.success(request, text % {"count": report.swept})
    if report.number is None:
        return HttpResponseRedirect(admin.page_url("sweep"))
    return HttpResponseRedirect(admin.page_url("sweep_run", str(report.number)))


def _render_report(
    admin: StoreAdmin,
    request: HttpRequest,
    title: str,
    report: Mapping[str, Any],
    first_properties: Sequence[LabeledValue],
    problem: str = "",
) -> HttpResponse:
    checked = report.get("looked_at") or {}
    properties = [
        *first_properties,
        LabeledValue(_("Put right"), str(report.get("swept", 0))),
        LabeledValue(_("Published again"), str(report.get("published", 0))),
        LabeledValue(_("Duration"), format_duration(report.get("seconds", 0))),
        LabeledValue(
            _("Checked"),
            ", ".join(f"{number} {_checked_label(what)}" for what, number in checked.items() if number) or NO_VALUE,
        ),
    ]
    findings = [
        (
            kind_label(one.get("kind", "")),
            escape_with_breaks(one.get("name") or one.get("row") or ""),
            _outcome_label(one),
            one,
        )
        for one in report.get("findings", ())
    ]
    context: dict[str, Any] = {
        "properties": properties,
        "problem": problem,
        "dry_run": bool(report.get("dry_run")),
        "classes": _tally_rows(report),
        "findings": findings,
        "unlisted": int(report.get("unlisted", 0)),
        "left_out": report.get("left_out", ()),
    }
    return admin.page(request, "sweep_run", title, breadcrumbs=((_("Sweep"), admin.page_url("sweep")),), **context)


def kind_label(kind: str) -> str:
    """Return the label of a class of findings; its code if it is unknown, as it comes from a later version."""
    return _(CLASSES[Kind(kind)][0]) if kind in CLASSES else kind


def summarize_repairs(report: Mapping[str, Any]) -> str:
    """Return the numbers of repaired findings, by class; empty if there are none."""
    parts = [f"{one.label}: {one.acted}" for one in _tally_rows(report) if one.acted]
    return "; ".join(parts)


def _tally_rows(report: Mapping[str, Any]) -> list[TallyRow]:
    counted = report.get("classes") or {}
    return [
        TallyRow(kind_label(kind), *(int(tally.get(word, 0)) for word in ("found", "acted", "changed", "kept")))
        for kind, tally in counted.items()
        if tally.get("found")
    ]


def _checked_label(what: str) -> str:
    labels = {
        "entries": _("index entries"),
        "locks": _("locks"),
        "rows": _("rows"),
        "parked": _("lines of messages"),
        "messages": _("messages of dead workers"),
    }
    return labels.get(what, what)


def _outcome_label(finding: Mapping[str, Any]) -> str:
    labels = {
        "swept": _("put right"),
        "would_be_swept": _("would be put right"),
        "changed": _("no longer so at the second check"),
        "kept": _("left as it is"),
    }
    came = str(finding.get("came", ""))
    return labels.get(came, came)
