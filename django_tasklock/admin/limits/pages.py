"""The list of limiters, and the page of one limiter."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from django.http import HttpRequest, HttpResponse
from django.utils.text import capfirst
from django.utils.translation import gettext as _, ngettext

from django_tasklock.admin.base import StoreAdmin, call_or_404, is_fragment, parse_offset, query_string
from django_tasklock.admin.formats import DATETIME_FORMAT, LabeledValue
from django_tasklock.admin.labels import action_label
from django_tasklock.admin.limits.rows import LimitRow, explain_limit, limit_row, permits_row
from django_tasklock.operations.limits.permits import list_permits
from django_tasklock.operations.limits.rates import get_limit, list_limits
from django_tasklock.operations.limits.values import LimitPage, LimitState, LimitView, PermitsPage
from django_tasklock.operations.optional import if_supported


def show_list(admin: StoreAdmin, request: HttpRequest, extra_context: Mapping[str, Any] | None) -> HttpResponse:
    """Show the list, or its changing part with ``?fragment=1``. Raises ``BackendUnavailable``."""
    text, start = request.GET.get("q", "").strip(), parse_offset(request.GET.get("from", ""))
    title = capfirst(str(admin.opts.verbose_name_plural))
    limits = if_supported(lambda: list_limits(text, offset=start, limit=admin.list_per_page))
    permits = if_supported(lambda: list_permits(text))
    if limits is None and permits is None:
        return admin.page(request, "limits_none", title)
    limits = limits or LimitPage([], 0, None)
    permits = permits or PermitsPage([], False)

    def list_query(number: int) -> str:
        return query_string({"q": text, "from": str(number) if number else ""})

    def limit_url(name: str) -> str:
        return admin.page_url("change", name)

    context: dict[str, Any] = {
        "q": text,
        "limits": [limit_row(view, limit_url) for view in limits.limits],
        "permits": [permits_row(view, limit_url) for view in permits.limiters],
        "more_permits": permits.more,
        "summary": _summarize(limits, permits),
        "refresh_url": list_query(start),
        "first": list_query(0) if start else "",
        "next": "" if limits.next is None else list_query(limits.next),
    }
    template = "limits_fragment" if is_fragment(request) else "limits"
    return admin.page(request, template, title, **context, **(extra_context or {}))


def show_limit(
    admin: StoreAdmin, request: HttpRequest, name: str, extra_context: Mapping[str, Any] | None = None
) -> HttpResponse:
    """Show the page of one limiter, or its changing part with ``?fragment=1``."""
    found = call_or_404(get_limit, name)

    def limit_url(name: str) -> str:
        return admin.page_url("change", name)

    view = found.limit
    row = None if view is None else limit_row(view, limit_url)
    context: dict[str, Any] = {
        "detail": found,
        "limit": row,
        "known": view is not None and view.usage is not None,
        "explanation": [] if view is None else explain_limit(view, found.paused_by),
        "paused": view is not None and view.state is LimitState.PAUSED,
        "properties": [] if view is None or row is None else _property_list(view, row),
        "tenants": [limit_row(tenant, limit_url) for tenant in found.tenants],
        "more_tenants": 0 if view is None else max(0, view.tenants - len(found.tenants)),
        "permits": None if found.permits is None else permits_row(found.permits, limit_url),
        "announcement": str(view.state.label) if view else "",
        "history": [(act, action_label(act.action)) for act in found.history],
        "datetime_format": DATETIME_FORMAT,
        "reset_url": admin.page_url("reset", name),
        "limit_url": admin.page_url("limit", name),
        "pause_url": admin.page_url("pause", name),
        "resume_url": admin.page_url("resume", name),
        "release_url": admin.page_url("release", name),
    }
    template = "limit_fragment" if is_fragment(request) else "limit"
    breadcrumbs = () if view is None or view.tenant is None else ((view.limiter, limit_url(view.limiter)),)
    return admin.page(request, template, name, breadcrumbs=breadcrumbs, **context, **(extra_context or {}))


def _summarize(limits: LimitPage, permits: PermitsPage) -> str:
    parts = [ngettext("%(count)d rate limit", "%(count)d rate limits", limits.total) % {"count": limits.total}]
    if count := len(permits.limiters):
        text = ngettext("%(count)d concurrency limiter in use", "%(count)d concurrency limiters in use", count)
        parts.append(text % {"count": count})
    return ", ".join(parts)


def _property_list(view: LimitView, row: LimitRow) -> list[LabeledValue]:
    properties = [LabeledValue(_("Rates"), row.rates, code=True)]
    if view.algorithm:
        properties.append(LabeledValue(_("Algorithm"), view.algorithm, code=True))
    if view.tenant is None:
        properties.append(LabeledValue(_("In the settings"), _("yes") if view.configured else _("no")))
    if view.usage is not None:
        properties += [
            LabeledValue(_("Next call"), row.next),
            LabeledValue(_("Waiting"), row.waiting),
            LabeledValue(_("Refused"), row.refused),
            LabeledValue(_("Limit in force"), row.share),
            LabeledValue(_("Reservations given back"), str(view.usage.free)),
        ]
    if row.until:
        properties.append(LabeledValue(_("Paused until"), row.until))
    return properties
