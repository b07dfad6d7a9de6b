"""What the pages of locks and those of limiters have in common: they show a store, and no table.

The doors before every view, the addresses of the pages, and the class that both admins are made of.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial, wraps
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, TypeVar, cast
from urllib.parse import urlencode

import django
from django.apps import apps
from django.contrib import admin
from django.contrib.admin.utils import quote, unquote
from django.core.exceptions import PermissionDenied
from django.db import connections, transaction
from django.db.models import Model
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseNotAllowed, HttpResponseRedirect
from django.http.response import HttpResponseBase
from django.template.response import TemplateResponse
from django.urls import NoReverseMatch, URLPattern, path, reverse
from django.utils.text import capfirst
from django.utils.translation import gettext as _

from django_tasklock.exceptions import BackendUnavailable, TaskLockError
from django_tasklock.models import AuditEntry, Lock, ParkedMessage, RateLimit
from django_tasklock.operations.values import Actor, RowRef

logger = logging.getLogger("django_tasklock")

if TYPE_CHECKING:
    _ModelAdmin = admin.ModelAdmin[Model]
else:
    _ModelAdmin = admin.ModelAdmin

LOOK = ("GET", "HEAD")
"""Methods of a view that changes nothing."""
LOOK_AND_ACT = ("GET", "HEAD", "POST")
"""Methods of a view whose POST acts."""
_View = TypeVar("_View", bound=Callable[..., HttpResponseBase])
_Found = TypeVar("_Found")
_DIGITS = 9


def door(*, methods: tuple[str, ...] = LOOK, release: bool = False) -> Callable[[_View], _View]:
    """Let in those who may look, and with ``release`` only those who may also act.

    Without permission 403, with another method 405, with the store down 503; nothing of the view has run then,
    except where a store went down in the middle of it.
    """

    def decorate(view: _View) -> _View:
        @wraps(view)
        def guarded(admin: StoreAdmin, request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponseBase:
            may = admin.has_release_permission(request) if release else admin.has_view_permission(request)
            if not may:
                raise PermissionDenied
            if request.method not in methods:
                return HttpResponseNotAllowed(methods)
            request.current_app = admin.admin_site.name
            try:
                return view(admin, request, *args, **kwargs)
            except BackendUnavailable as error:
                return admin.store_down(request, error)

        return cast(_View, guarded)

    return decorate


class Page(NamedTuple):
    """A page that no ModelAdmin has. ``show(admin, request)`` answers, and is given the name that is in the route.

    ``methods``, ``release``: see ``door``.
    """

    route: str
    name: str
    show: Callable[..., HttpResponseBase]
    methods: tuple[str, ...] = LOOK
    release: bool = False

    def view_of(self, admin: StoreAdmin) -> Callable[..., HttpResponseBase]:
        """Return the view of this page on an admin."""

        @door(methods=self.methods, release=self.release)
        def view(admin: StoreAdmin, request: HttpRequest, **route: str) -> HttpResponseBase:
            return self.show(admin, request, *map(unquoted, route.values()))

        return partial(view, admin)


def found_or_404(look: Callable[..., _Found], name: str, *args: Any, **options: Any) -> _Found:
    """Return what ``look`` says of a name; 404 for what cannot be one, or where the store keeps no such thing.

    Raises ``BackendUnavailable``.
    """
    try:
        return look(name, *args, **options)
    except BackendUnavailable:
        raise
    except TaskLockError as error:
        raise Http404(str(error)) from error


# Addresses


def quoted(name: str) -> str:
    """Write a lock's name as a part of a path: ``order:1/x`` is one part."""
    text: str = quote(name)
    # Browsers take "." and ".." for directories, however they are written. "_2E" is nothing that quote() makes.
    return text.replace(".", "_2E") if name.strip(".") == "" else text


def unquoted(text: str) -> str:
    """Return the name that ``quoted`` made this of."""
    return str(unquote(text.replace("_2E", ".")))


def address(site: admin.AdminSite, page: str, name: str | None = None, model: type[Model] = Lock) -> str:
    """Return the address of one of our pages on this admin site."""
    args = () if name is None else (quoted(name),)
    return reverse(f"admin:tasklock_{model._meta.model_name}_{page}", args=args, current_app=site.name)


class Section(NamedTuple):
    """One of our pages, as all of them link to it."""

    label: str
    url: str
    chosen: bool


def sections(site: admin.AdminSite, request: HttpRequest) -> list[Section]:
    """Return our pages on this admin site that this person may look at."""
    pages: list[tuple[type[Model], str, Any]] = [
        (Lock, "overview", _("overview")),
        (Lock, "changelist", Lock._meta.verbose_name_plural),
        (RateLimit, "changelist", RateLimit._meta.verbose_name_plural),
        (ParkedMessage, "changelist", ParkedMessage._meta.verbose_name_plural),
        (Lock, "sweep", _("sweep")),
        (AuditEntry, "changelist", AuditEntry._meta.verbose_name_plural),
    ]
    found = []
    for model, page, label in pages:
        if may_see(site, request, model):
            with suppress(NoReverseMatch):  # a class of the project's own has pages of its own
                url = address(site, page, model=model)
                found.append(Section(capfirst(str(label)), url, url == request.path))
    return found


def may_see(site: admin.AdminSite, request: HttpRequest, model: type[Model]) -> bool:
    """Return whether this admin site has our pages of ``model``, and this person may look at them."""
    user: Any = request.user
    return site.is_registered(model) and bool(user.has_perm(f"tasklock.view_{model._meta.model_name}"))


def query_string(words: Mapping[str, str]) -> str:
    """Write a query string, without what is empty; ``?`` where all is."""
    return "?" + urlencode({key: value for key, value in words.items() if value})


def offset(text: str) -> int:
    """Read where a page of a list starts; 0 for what is no such number."""
    return int(text) if text.isascii() and text.isdigit() and len(text) <= _DIGITS else 0


def is_fragment(request: HttpRequest) -> bool:
    """Tell whether only the part that changes is asked for, to put it in place of what is shown."""
    return request.GET.get("fragment") == "1"


class StoreAdmin(_ModelAdmin):
    """``may_act``: the permission that lets one act, beside the one to look.

    ``refresh_every``: seconds until a page that is open asks again; 0: never.
    """

    refresh_every: ClassVar[int] = 5
    may_act: ClassVar[str]
    own_pages: ClassVar[Sequence[Page]]
    down: ClassVar[str] = "store_down"
    """The template that says that the store does not answer; with ``_fragment`` the part of it that changes."""

    # Who may do what

    def has_view_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """Ask for the permission to look."""
        return self._has(request, "view")

    def has_release_permission(self, request: HttpRequest) -> bool:
        """Ask for both permissions: whoever acts is shown what it does."""
        return self._has(request, "view") and self._has(request, self.may_act)

    def has_add_permission(self, request: HttpRequest) -> bool:
        """Refuse: code makes locks and limiters, people do not."""
        return False

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """Refuse: there is nothing to edit."""
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """Refuse: a lock is released and a limit is reset, which are other permissions."""
        return False

    def has_module_permission(self, request: HttpRequest) -> bool:
        """Show on the index what may be looked at."""
        return self._has(request, "view")

    # Pages

    def get_urls(self) -> list[URLPattern]:
        """Replace all addresses of a ModelAdmin: those inherited would query a table."""

        def page(route: str, name: str, view: Any) -> URLPattern:
            wrapped: Any = self.admin_site.admin_view(view)
            for alias in connections:  # what is written to a guarded row must be committed before its lock goes
                transaction.non_atomic_requests(alias)(wrapped)
            found: URLPattern = path(route, wrapped, name=f"{self.opts.app_label}_{self.opts.model_name}_{name}")
            return found

        return [  # by the names that the admin's own links use, and by ours
            page("", "changelist", self.changelist_view),
            page("add/", "add", self.add_view),
            *(page(one.route, one.name, one.view_of(self)) for one in self.own_pages),
            page("<path:object_id>/history/", "history", self.history_view),
            page("<path:object_id>/delete/", "delete", self.delete_view),
            page("<path:object_id>/change/", "change", self.change_view),
        ]

    def add_view(self, request: HttpRequest, form_url: str = "", extra_context: Any = None) -> HttpResponse:
        """Refuse whoever comes."""
        raise PermissionDenied

    def delete_view(self, request: HttpRequest, object_id: str, extra_context: Any = None) -> HttpResponse:
        """Refuse whoever comes."""
        raise PermissionDenied

    @door()
    def history_view(self, request: HttpRequest, object_id: str, extra_context: Any = None) -> HttpResponse:
        """Redirect to the page of that name, which has its history."""
        return HttpResponseRedirect(self.address("change", unquoted(object_id)) + "#tasklock-history")

    # What the pages are made with

    def address(self, page: str, name: str | None = None) -> str:
        """Return the address of one of our pages on this admin site."""
        return address(self.admin_site, page, name, self.model)

    def row_address(self, request: HttpRequest) -> Callable[[RowRef], str]:
        """Make ``f(row)``: the change page of a guarded row, empty where this site has none or it may not be seen."""
        seen: dict[RowRef, str] = {}

        def of(ref: RowRef) -> str:
            if ref not in seen:
                seen[ref] = self._row_address(request, ref)
            return seen[ref]

        return of

    def actor(self, request: HttpRequest) -> Actor:
        """Return who acts, for the history."""
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
        """Render a page of the admin. ``trail``: names and addresses of the pages between the list and this one."""
        context = {
            **self.admin_site.each_context(request),
            "opts": self.opts,
            "title": title,
            "subtitle": None,
            "list_url": self.address("changelist"),
            "list_title": capfirst(str(self.opts.verbose_name_plural)),
            "trail": trail,
            "listed": django.VERSION >= (6, 1),  # since then breadcrumbs are an <ol>
            "sections": sections(self.admin_site, request),
            "may_release": self.has_release_permission(request),
            "refresh_every": self.refresh_every,
            **context,
        }
        return TemplateResponse(request, f"admin/tasklock/{template}.html", context, status=status)

    def store_down(self, request: HttpRequest, error: BackendUnavailable) -> HttpResponse:
        """Answer with 503. The reason may name hosts and ports, so it goes to the log."""
        logger.warning("the admin cannot show %s: %s", self.opts.verbose_name_plural, error)
        template = f"{self.down}_fragment" if is_fragment(request) else self.down
        again = request.get_full_path() if request.method in ("GET", "HEAD") else self.address("changelist")
        context: dict[str, Any] = {"again": again, "acted": request.method == "POST"}
        response = self.page(request, template, _("The lock store cannot be reached"), status=503, **context)
        response.headers["Retry-After"] = "10"
        return response

    def _has(self, request: HttpRequest, action: str) -> bool:
        user: Any = request.user
        return bool(user.has_perm(f"{self.opts.app_label}.{action}_{self.opts.model_name}"))

    def _row_address(self, request: HttpRequest, ref: RowRef) -> str:
        try:
            model: Any = apps.get_model(ref.model)
        except (LookupError, ValueError):
            return ""
        row_admin = self.admin_site._registry.get(model)
        if row_admin is None or not row_admin.has_view_or_change_permission(request):
            return ""
        try:
            page = f"admin:{model._meta.app_label}_{model._meta.model_name}_change"
            return reverse(page, args=(quote(ref.pk),), current_app=self.admin_site.name)
        except NoReverseMatch:
            return ""
