"""The list of limiters, and the page of one limiter."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from django.http import HttpRequest, HttpResponse
from django.utils.text import capfirst
from django.utils.translation import gettext as _, ngettext

from django_tasklock import operations
from django_tasklock.admin.base import StoreAdmin, found_or_404, is_fragment, offset, query_string
from django_tasklock.admin.formats import MOMENT, Fact
from django_tasklock.admin.limits.rows import LimitRow, limit_row, permits_row, sentences
from django_tasklock.admin.words import action_label
from django_tasklock.operations.limits.values import LimitPage, LimitState, LimitView, PermitsPage
from django_tasklock.operations.optional import if_supported


def listing(admin: StoreAdmin, request: HttpRequest, extra_context: Mapping[str, Any] | None) -> HttpResponse:
    """Show the list, or its changing part with ``?fragment=1``. Raises ``BackendUnavailable``."""
    text, start = request.GET.get("q", "").strip(), offset(request.GET.get("from", ""))
    title = capfirst(str(admin.opts.verbose_name_plural))
    limits = if_supported(lambda: operations.list_limits(text, offset=start, limit=admin.list_per_page))
    permits = if_supported(lambda: operations.list_permits(text))
    if limits is None and permits is None:
        return admin.page(request, "limits_none", title)
    limits = limits or LimitPage([], 0, None)
    permits = permits or PermitsPage([], False)

    def address(number: int) -> str:
        return query_string({"q": text, "from": str(number) if number else ""})

    def page_of(name: str) -> str:
        return admin.address("change", name)

    context: dict[str, Any] = {
        "q": text,
        "limits": [limit_row(view, page_of) for view in limits.limits],
        "permits": [permits_row(view, page_of) for view in permits.limiters],
        "more_permits": permits.more,
        "summary": _summary(limits, permits),
        "here": address(start),
        "first": address(0) if start else "",
        "next": "" if limits.next is None else address(limits.next),
    }
    template = "limits_fragment" if is_fragment(request) else "limits"
    return admin.page(request, template, title, **context, **(extra_context or {}))


def detail(
    admin: StoreAdmin, request: HttpRequest, name: str, extra_context: Mapping[str, Any] | None = None
) -> HttpResponse:
    """Show the page of one limiter, or its changing part with ``?fragment=1``."""
    found = found_or_404(operations.get_limit, name)

    def page_of(name: str) -> str:
        return admin.address("change", name)

    view = found.limit
    row = None if view is None else limit_row(view, page_of)
    context: dict[str, Any] = {
        "detail": found,
        "limit": row,
        "known": view is not None and view.usage is not None,
        "explanation": [] if view is None else sentences(view, found.paused_by),
        "paused": view is not None and view.state is LimitState.PAUSED,
        "facts": [] if view is None or row is None else _facts(view, row),
        "tenants": [limit_row(tenant, page_of) for tenant in found.tenants],
        "more_tenants": 0 if view is None else max(0, view.tenants - len(found.tenants)),
        "permits": None if found.permits is None else permits_row(found.permits, page_of),
        "say": str(view.state.label) if view else "",
        "history": [(act, action_label(act.action)) for act in found.history],
        "moment": MOMENT,
        "reset_url": admin.address("reset", name),
        "limit_url": admin.address("limit", name),
        "pause_url": admin.address("pause", name),
        "resume_url": admin.address("resume", name),
        "release_url": admin.address("release", name),
    }
    template = "limit_fragment" if is_fragment(request) else "limit"
    trail = () if view is None or view.tenant is None else ((view.limiter, page_of(view.limiter)),)
    return admin.page(request, template, name, trail=trail, **context, **(extra_context or {}))


def _summary(limits: LimitPage, permits: PermitsPage) -> str:
    parts = [ngettext("%(count)d rate limit", "%(count)d rate limits", limits.total) % {"count": limits.total}]
    if count := len(permits.limiters):
        text = ngettext("%(count)d concurrency limiter in use", "%(count)d concurrency limiters in use", count)
        parts.append(text % {"count": count})
    return ", ".join(parts)


def _facts(view: LimitView, row: LimitRow) -> list[Fact]:
    facts = [Fact(_("Rates"), row.rates, code=True)]
    if view.algorithm:
        facts.append(Fact(_("Algorithm"), view.algorithm, code=True))
    if view.tenant is None:
        facts.append(Fact(_("In the settings"), _("yes") if view.configured else _("no")))
    if view.usage is not None:
        facts += [
            Fact(_("Next call"), row.next),
            Fact(_("Waiting"), row.waiting),
            Fact(_("Refused"), row.refused),
            Fact(_("Limit in force"), row.share),
            Fact(_("Reservations given back"), str(view.usage.free)),
        ]
    if row.until:
        facts.append(Fact(_("Paused until"), row.until))
    return facts
