"""The list of limiters, and the page of one limiter."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from django.http import HttpRequest, HttpResponse
from django.utils.text import capfirst
from django.utils.translation import gettext as _, ngettext

from django_tasklock.admin.base import StoreAdmin, call_or_404, parse_offset, query_string
from django_tasklock.operations.limits.explanation import explain_limit
from django_tasklock.operations.limits.permits import list_permits
from django_tasklock.operations.limits.rates import get_limit, list_limits
from django_tasklock.operations.limits.values import LimitPage, LimitState, LimitView, PermitsPage
from django_tasklock.operations.optional import if_supported


def show_list(admin: StoreAdmin, request: HttpRequest, extra_context: Mapping[str, Any] | None) -> HttpResponse:
    """Show the list. Raises ``BackendUnavailable``."""
    text, start = request.GET.get("q", "").strip(), parse_offset(request.GET.get("from", ""))
    title = capfirst(str(admin.opts.verbose_name_plural))
    limits = if_supported(lambda: list_limits(text, offset=start, limit=admin.list_per_page))
    permits = if_supported(lambda: list_permits(text))
    if limits is None and permits is None:
        sentences = [
            _("The locks of this project are kept in a store that keeps no limits, so there is no list here."),
            _("Redis and the database keep them; the store is chosen in the settings (TASKLOCK)."),
        ]
        return admin.say(request, title, sentences)
    limits = limits or LimitPage([], 0, None)
    permits = permits or PermitsPage([], False)

    def list_query(number: int) -> str:
        return query_string({"q": text, "from": str(number) if number else ""})

    context: dict[str, Any] = {
        "q": text,
        "limits": [(view, admin.page_url("change", view.name)) for view in limits.limits],
        "permits": [(view, admin.page_url("change", view.name)) for view in permits.limiters],
        "more_permits": permits.more,
        "summary": _summarize(limits, permits),
        "first": list_query(0) if start else "",
        "next": "" if limits.next is None else list_query(limits.next),
    }
    return admin.page(request, "limits", title, **context, **(extra_context or {}))


def show_limit(
    admin: StoreAdmin, request: HttpRequest, name: str, extra_context: Mapping[str, Any] | None = None
) -> HttpResponse:
    """Show the page of one limiter."""
    detail = call_or_404(get_limit, name)
    limit = detail.limit
    context: dict[str, Any] = {
        "detail": detail,
        "limit": limit,
        "acts": [] if limit is None or limit.usage is None else _acts(admin, limit),
        "explanation": [] if limit is None else explain_limit(limit, detail.paused_by),
        "tenants": [(tenant, admin.page_url("change", tenant.name)) for tenant in detail.tenants],
        "more_tenants": 0 if limit is None else max(0, limit.tenants - len(detail.tenants)),
        "release_url": admin.page_url("release", detail.name),
    }
    breadcrumbs: tuple[tuple[str, str], ...] = ()
    if limit is not None and limit.tenant is not None:
        breadcrumbs = ((limit.limiter, admin.page_url("change", limit.limiter)),)
    return admin.page(request, "limit", name, breadcrumbs=breadcrumbs, **context, **(extra_context or {}))


def _acts(admin: StoreAdmin, limit: LimitView) -> list[tuple[str, str, str]]:
    """Return the actions on a rate limit: the id and the text of a link, and where it leads."""
    paused = limit.state is LimitState.PAUSED
    acts = [
        ("reset", _("Reset…"), "reset"),
        ("change", _("Change the limit…"), "limit"),
        ("pause-limit", _("Change the pause…") if paused else _("Pause…"), "pause"),
    ]
    if paused:
        acts.append(("resume", _("End the pause…"), "resume"))
    return [(act, label, admin.page_url(page, limit.name)) for act, label, page in acts]


def _summarize(limits: LimitPage, permits: PermitsPage) -> str:
    parts = [ngettext("%(count)d rate limit", "%(count)d rate limits", limits.total) % {"count": limits.total}]
    if count := len(permits.limiters):
        text = ngettext("%(count)d concurrency limiter in use", "%(count)d concurrency limiters in use", count)
        parts.append(text % {"count": count})
    return ", ".join(parts)
