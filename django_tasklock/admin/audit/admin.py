"""The admin of the audit trail."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar, NamedTuple

from django.contrib import admin
from django.db.models import Model
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.http.response import HttpResponseBase
from django.utils.safestring import SafeString
from django.utils.text import capfirst
from django.utils.translation import gettext as _, ngettext

from django_tasklock import operations
from django_tasklock.admin.audit.export import FORMATS, export_response
from django_tasklock.admin.audit.form import AuditForm
from django_tasklock.admin.base import Page, StoreAdmin, check_access, may_view, page_url, parse_offset, query_string
from django_tasklock.admin.formats import DATETIME_FORMAT, escape_with_breaks
from django_tasklock.admin.labels import action_label
from django_tasklock.conf import get_settings
from django_tasklock.models import Lock, RateLimit
from django_tasklock.operations.audit import LIMIT_ACTIONS
from django_tasklock.operations.values import Act


def export(admin: StoreAdmin, request: HttpRequest) -> HttpResponseBase:
    """Stream all matching entries as CSV or JSON."""
    form = AuditForm(request.GET)
    if not form.is_valid():
        return HttpResponseRedirect(admin.page_url("changelist") + query_string(form.parameters()))
    return export_response(operations.each_act(form.query), request.GET.get("format", ""))


class AuditAdmin(StoreAdmin):
    """Lists and exports the audit trail. ``tasklock.view_auditentry`` allows viewing; nothing can be changed.

    ``list_per_page``: entries on a page.
    """

    list_per_page = 100
    may_act = "view"
    own_pages: ClassVar[Sequence[Page]] = [Page("export/", "export", export)]

    @check_access()
    def changelist_view(self, request: HttpRequest, extra_context: Any = None) -> HttpResponse:
        """Show the latest matching entries."""
        form = AuditForm(request.GET)
        title = capfirst(str(self.opts.verbose_name_plural))
        below = parse_offset(request.GET.get("below", "")) or None
        page = operations.list_acts(form.query, below=below, limit=self.list_per_page)
        parameters = form.parameters()
        context: dict[str, Any] = {
            "form": form,
            "rows": _entry_rows(page.acts, self.admin_site, request),
            "datetime_format": DATETIME_FORMAT,
            "filtered": bool(parameters),
            "first": query_string(parameters) if below else "",
            "next": "" if page.next is None else query_string({**parameters, "below": str(page.next)}),
            "exports": [
                (kind.upper(), self.page_url("export") + query_string({**parameters, "format": kind}))
                for kind in FORMATS
            ],
            "retention": _describe_retention(),
        }
        return self.page(request, "audit", title, **context, **(extra_context or {}))

    @check_access()
    def change_view(
        self, request: HttpRequest, object_id: str, form_url: str = "", extra_context: Any = None
    ) -> HttpResponse:
        """Redirect to the list: an entry has no page of its own."""
        return HttpResponseRedirect(self.page_url("changelist"))


class EntryRow(NamedTuple):
    """An entry with its labels and links."""

    act: Act
    action: str
    name: SafeString
    url: str
    """The URL of the lock's or limiter's page; empty if the user may not view it."""


def _entry_rows(acts: Sequence[Act], site: admin.AdminSite, request: HttpRequest) -> list[EntryRow]:
    of_lock = _url_getter(Lock, site, request)
    of_limit = _url_getter(RateLimit, site, request)
    return [
        EntryRow(
            act,
            action_label(act.action),
            escape_with_breaks(act.name),
            (of_limit if act.action in LIMIT_ACTIONS else of_lock)(act.name),
        )
        for act in acts
    ]


def _url_getter(model: type[Model], site: admin.AdminSite, request: HttpRequest) -> Callable[[str], str]:
    linked = may_view(site, request, model)

    def name_url(name: str) -> str:
        if not linked or not name or "\\" in name:  # a backslash: the name is only stored escaped, and possibly cut
            return ""
        return page_url(site, "change", name, model)

    return name_url


def _describe_retention() -> str:
    days = get_settings().AUDIT_DAYS
    if days is None:
        return _("Entries are kept for ever: TASKLOCK['AUDIT_DAYS'] is None.")
    text = ngettext(
        "The sweep removes entries that are older than %(days)d day: TASKLOCK['AUDIT_DAYS'].",
        "The sweep removes entries that are older than %(days)d days: TASKLOCK['AUDIT_DAYS'].",
        days,
    )
    return text % {"days": days}
