"""Live locks in the admin: which pages there are, and who may see them. The rows come from the lock store."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, ClassVar

import django
from django.contrib import admin
from django.core.exceptions import PermissionDenied
from django.db import connections, transaction
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.urls import URLPattern, path
from django.utils.text import capfirst
from django.utils.translation import gettext as _

from django_tasklock.admin import acts, detail, listing
from django_tasklock.admin.addresses import address, row_address, unquoted
from django_tasklock.admin.doors import LOOK_AND_ACT, door, is_fragment, unavailable
from django_tasklock.exceptions import BackendUnavailable
from django_tasklock.models import Lock
from django_tasklock.operations.views import Actor, RowRef

__all__ = ["LockAdmin"]

logger = logging.getLogger("django_tasklock")

if TYPE_CHECKING:
    _ModelAdmin = admin.ModelAdmin[Lock]
else:
    _ModelAdmin = admin.ModelAdmin


class LockAdmin(_ModelAdmin):
    """List, page, release. ``tasklock.view_lock`` lets one look, ``tasklock.release_lock`` also act.

    ``list_per_page``: locks on a page. ``refresh_every``: seconds until a page that is open asks again; 0: never.
    """

    list_per_page = 100
    refresh_every: ClassVar[int] = 5

    # Who may do what

    def has_view_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """``tasklock.view_lock``."""
        return self._has(request, "view")

    def has_release_permission(self, request: HttpRequest) -> bool:
        """``tasklock.release_lock`` too: who releases is shown what is released."""
        return self._has(request, "view") and self._has(request, "release")

    def has_add_permission(self, request: HttpRequest) -> bool:
        """Tasks take locks, people do not."""
        return False

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """There is nothing to edit."""
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """A lock is released, which is another permission."""
        return False

    def has_module_permission(self, request: HttpRequest) -> bool:
        """The index shows what may be looked at."""
        return self._has(request, "view")

    # Pages. All addresses of a ModelAdmin are replaced: those inherited would query a table.

    def get_urls(self) -> list[URLPattern]:
        """The pages by the names that the admin's own links use, and by ours."""

        def page(route: str, view: Any, name: str) -> URLPattern:
            wrapped: Any = self.admin_site.admin_view(view)
            for alias in connections:  # what is written to a guarded row must be committed before its lock goes
                transaction.non_atomic_requests(alias)(wrapped)
            found: URLPattern = path(route, wrapped, name=f"{self.opts.app_label}_{self.opts.model_name}_{name}")
            return found

        return [
            page("", self.changelist_view, "changelist"),
            page("add/", self.add_view, "add"),
            page("look-up/", self.look_up_view, "look_up"),
            page("release/", self.release_selected_view, "release_selected"),
            page("<path:object_id>/release/", self.release_view, "release"),
            page("<path:object_id>/ask/", self.ask_view, "ask"),
            page("<path:object_id>/history/", self.history_view, "history"),
            page("<path:object_id>/delete/", self.delete_view, "delete"),
            page("<path:object_id>/change/", self.change_view, "change"),
        ]

    @door()
    def changelist_view(self, request: HttpRequest, extra_context: Any = None) -> HttpResponse:
        """The list."""
        return listing.show(self, request, extra_context)

    @door()
    def change_view(
        self, request: HttpRequest, object_id: str, form_url: str = "", extra_context: Any = None
    ) -> HttpResponse:
        """Everything about one name, held or free."""
        return detail.show(self, request, unquoted(object_id), extra_context)

    @door()
    def look_up_view(self, request: HttpRequest) -> HttpResponse:
        """To the page of the name that was typed."""
        return detail.look_up(self, request)

    @door(methods=LOOK_AND_ACT, release=True)
    def release_view(self, request: HttpRequest, object_id: str) -> HttpResponse:
        """Confirm, then release."""
        return acts.release(self, request, unquoted(object_id))

    @door(methods=LOOK_AND_ACT, release=True)
    def ask_view(self, request: HttpRequest, object_id: str) -> HttpResponse:
        """Confirm, then ask the holder."""
        return acts.ask(self, request, unquoted(object_id))

    @door(methods=LOOK_AND_ACT, release=True)
    def release_selected_view(self, request: HttpRequest) -> HttpResponse:
        """Confirm, then release those that were ticked."""
        return acts.release_selected(self, request)

    @door()
    def history_view(self, request: HttpRequest, object_id: str, extra_context: Any = None) -> HttpResponse:
        """A part of the lock's own page."""
        return HttpResponseRedirect(self.address("change", unquoted(object_id)) + "#tasklock-history")

    @door(release=True)
    def delete_view(self, request: HttpRequest, object_id: str, extra_context: Any = None) -> HttpResponse:
        """Who would delete means release."""
        return HttpResponseRedirect(self.address("release", unquoted(object_id)))

    def add_view(self, request: HttpRequest, form_url: str = "", extra_context: Any = None) -> HttpResponse:
        """Nobody may."""
        raise PermissionDenied

    # What the pages are made with

    def address(self, page: str, name: str | None = None) -> str:
        """Of one of our pages on this admin site."""
        return address(self.admin_site, page, name)

    def row_address(self, request: HttpRequest) -> Any:
        """``f(row) -> address``, empty where this reader may not see it."""
        known: dict[RowRef, str] = {}

        def of(ref: RowRef) -> str:
            if ref not in known:
                known[ref] = row_address(self.admin_site, request, ref)
            return known[ref]

        return of

    def actor(self, request: HttpRequest) -> Actor:
        """Who acts, for the history."""
        user: Any = request.user
        return Actor(name=user.get_username(), user_id=user.pk)

    def page(
        self,
        request: HttpRequest,
        template: str,
        title: str,
        *,
        status: int = 200,
        trail: tuple[tuple[str, str], ...] = (),
        **context: Any,
    ) -> TemplateResponse:
        """A page of the admin. ``trail``: names and addresses of the pages between the list and this one."""
        context = {
            **self.admin_site.each_context(request),
            "opts": self.opts,
            "title": title,
            "subtitle": None,
            "list_url": self.address("changelist"),
            "list_title": capfirst(str(self.opts.verbose_name_plural)),
            "look_up_url": self.address("look_up"),
            "trail": trail,
            "listed": django.VERSION >= (6, 1),  # since then breadcrumbs are an <ol>
            "may_release": self.has_release_permission(request),
            "refresh_every": self.refresh_every,
            **context,
        }
        return TemplateResponse(request, f"admin/tasklock/{template}.html", context, status=status)

    def store_down(self, request: HttpRequest, error: BackendUnavailable) -> HttpResponse:
        """503. The reason may name hosts and ports, so it goes to the log."""
        logger.warning("the admin cannot show locks: %s", error)
        template = "store_down_fragment" if is_fragment(request) else "store_down"
        again = request.get_full_path() if request.method in ("GET", "HEAD") else self.address("changelist")
        context: dict[str, Any] = {"again": again, "acted": request.method == "POST"}
        return unavailable(self.page(request, template, _("The lock store cannot be reached"), status=503, **context))

    def _has(self, request: HttpRequest, action: str) -> bool:
        user: Any = request.user
        return bool(user.has_perm(f"{self.opts.app_label}.{action}_{self.opts.model_name}"))
