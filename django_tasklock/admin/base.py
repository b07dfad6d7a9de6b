"""What the pages of locks and those of limiters have in common: they show a store, and no table."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import django
from django.contrib import admin
from django.core.exceptions import PermissionDenied
from django.db import connections, transaction
from django.db.models import Model
from django.http import HttpRequest, HttpResponse
from django.template.response import TemplateResponse
from django.urls import URLPattern, path
from django.utils.text import capfirst
from django.utils.translation import gettext as _

from django_tasklock.admin.addresses import address
from django_tasklock.admin.doors import is_fragment, unavailable
from django_tasklock.exceptions import BackendUnavailable
from django_tasklock.operations.values import Actor

__all__ = ["StoreAdmin"]

logger = logging.getLogger("django_tasklock")

if TYPE_CHECKING:
    _ModelAdmin = admin.ModelAdmin[Model]
else:
    _ModelAdmin = admin.ModelAdmin


class StoreAdmin(_ModelAdmin):
    """``may_act``: the permission that lets one act, beside the one to look.

    ``refresh_every``: seconds until a page that is open asks again; 0: never.
    """

    refresh_every: ClassVar[int] = 5
    may_act: ClassVar[str]
    down: ClassVar[str] = "store_down"
    """The template that says that the store does not answer; with ``_fragment`` the part of it that changes."""

    # Who may do what

    def has_view_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """The permission to look."""
        return self._has(request, "view")

    def has_release_permission(self, request: HttpRequest) -> bool:
        """Both permissions: who acts is shown what it does."""
        return self._has(request, "view") and self._has(request, self.may_act)

    def has_add_permission(self, request: HttpRequest) -> bool:
        """Code makes locks and limiters, people do not."""
        return False

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """There is nothing to edit."""
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """A lock is released and a limit is reset, which are other permissions."""
        return False

    def has_module_permission(self, request: HttpRequest) -> bool:
        """The index shows what may be looked at."""
        return self._has(request, "view")

    # Pages

    def pages(self) -> Sequence[tuple[str, Any, str]]:
        """Route, view and name of each page."""
        raise NotImplementedError

    def get_urls(self) -> list[URLPattern]:
        """All addresses of a ModelAdmin are replaced: those inherited would query a table."""

        def page(route: str, view: Any, name: str) -> URLPattern:
            wrapped: Any = self.admin_site.admin_view(view)
            for alias in connections:  # what is written to a guarded row must be committed before its lock goes
                transaction.non_atomic_requests(alias)(wrapped)
            found: URLPattern = path(route, wrapped, name=f"{self.opts.app_label}_{self.opts.model_name}_{name}")
            return found

        return [page(*one) for one in self.pages()]

    def add_view(self, request: HttpRequest, form_url: str = "", extra_context: Any = None) -> HttpResponse:
        """Nobody may."""
        raise PermissionDenied

    # What the pages are made with

    def address(self, page: str, name: str | None = None) -> str:
        """Of one of our pages on this admin site."""
        return address(self.admin_site, page, name, self.model)

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
            "trail": trail,
            "listed": django.VERSION >= (6, 1),  # since then breadcrumbs are an <ol>
            "may_release": self.has_release_permission(request),
            "refresh_every": self.refresh_every,
            **context,
        }
        return TemplateResponse(request, f"admin/tasklock/{template}.html", context, status=status)

    def store_down(self, request: HttpRequest, error: BackendUnavailable) -> HttpResponse:
        """503. The reason may name hosts and ports, so it goes to the log."""
        logger.warning("the admin cannot show %s: %s", self.opts.verbose_name_plural, error)
        template = f"{self.down}_fragment" if is_fragment(request) else self.down
        again = request.get_full_path() if request.method in ("GET", "HEAD") else self.address("changelist")
        context: dict[str, Any] = {"again": again, "acted": request.method == "POST"}
        return unavailable(self.page(request, template, _("The lock store cannot be reached"), status=503, **context))

    def _has(self, request: HttpRequest, action: str) -> bool:
        user: Any = request.user
        return bool(user.has_perm(f"{self.opts.app_label}.{action}_{self.opts.model_name}"))
