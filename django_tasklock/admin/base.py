"""The base of our admin pages, which show a store in place of a table.

Access control of the views, the addresses of the pages, and the base class of the admins.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial, wraps
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, TypeVar, cast
from urllib.parse import urlencode

import django
from django.apps import apps
from django.contrib import admin
from django.contrib.admin.utils import quote, unquote
from django.core.exceptions import PermissionDenied
from django.db.models import Model
from django.forms import Form
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseNotAllowed, HttpResponseRedirect
from django.http.response import HttpResponseBase
from django.template.response import TemplateResponse
from django.urls import NoReverseMatch, URLPattern, path, reverse
from django.utils.text import capfirst
from django.utils.translation import gettext as _

from django_tasklock.db.transactions import outside_transactions
from django_tasklock.exceptions import BackendUnavailable, TaskLockError
from django_tasklock.models import AuditEntry, Lock, ParkedMessage, RateLimit, SweepEntry
from django_tasklock.names import other_tenant
from django_tasklock.operations.values import Actor, LockView, RowRef

logger = logging.getLogger("django_tasklock")

if TYPE_CHECKING:
    _ModelAdmin = admin.ModelAdmin[Model]
else:
    _ModelAdmin = admin.ModelAdmin

READ_ONLY = ("GET", "HEAD")
"""Methods of a view that changes nothing."""
READ_AND_POST = ("GET", "HEAD", "POST")
"""Methods of a view whose POST acts."""
_View = TypeVar("_View", bound=Callable[..., HttpResponseBase])
_T = TypeVar("_T")
_DIGITS = 9


def check_access(*, methods: tuple[str, ...] = READ_ONLY, act: bool = False) -> Callable[[_View], _View]:
    """Check the permission to view and, with ``act``, also to act, before the view runs.

    Answer 403 without permission, 405 for another method, and 503 if the store is down. Nothing of the view has run
    then, unless the store went down while it ran.
    """

    def decorate(view: _View) -> _View:
        @wraps(view)
        def checked(admin: StoreAdmin, request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponseBase:
            allowed = admin.has_act_permission(request) if act else admin.has_view_permission(request)
            if not allowed:
                raise PermissionDenied
            if request.method not in methods:
                return HttpResponseNotAllowed(methods)
            request.current_app = admin.admin_site.name
            try:
                return view(admin, request, *args, **kwargs)
            except BackendUnavailable as error:
                return admin.store_down(request, error)

        return cast(_View, checked)

    return decorate


class Page(NamedTuple):
    """A page that ModelAdmin does not have. ``render(admin, request)`` is also given the name in the route, if any.

    ``methods``, ``act``: see ``check_access``.
    """

    route: str
    name: str
    render: Callable[..., HttpResponseBase]
    methods: tuple[str, ...] = READ_ONLY
    act: bool = False

    def make_view(self, admin: StoreAdmin) -> Callable[..., HttpResponseBase]:
        """Return the view of this page for an admin."""

        @check_access(methods=self.methods, act=self.act)
        def view(admin: StoreAdmin, request: HttpRequest, **route: str | int) -> HttpResponseBase:
            return self.render(admin, request, *(unquote_name(str(part)) for part in route.values()))

        return partial(view, admin)


def call_or_404(call: Callable[..., _T], name: str, *args: Any, **options: Any) -> _T:
    """Return ``call(name, ...)``; 404 for an invalid name, or a store that does not support the call.

    Raises ``BackendUnavailable``.
    """
    try:
        return call(name, *args, **options)
    except BackendUnavailable:
        raise
    except TaskLockError as error:
        raise Http404(str(error)) from error


# Addresses


def quote_name(name: str) -> str:
    """Quote a lock's name as one part of a path, even ``order:1/x``."""
    text: str = quote(name)
    # Browsers resolve "." and ".." as directories, quoted or not. "_2E" never occurs in the output of quote().
    return text.replace(".", "_2E") if name.strip(".") == "" else text


def unquote_name(text: str) -> str:
    """Return the name that ``quote_name`` encoded."""
    return str(unquote(text.replace("_2E", ".")))


def page_url(site: admin.AdminSite, page: str, name: str | None = None, model: type[Model] = Lock) -> str:
    """Return the URL of one of our pages on this admin site."""
    args = () if name is None else (quote_name(name),)
    return reverse(f"admin:tasklock_{model._meta.model_name}_{page}", args=args, current_app=site.name)


class Section(NamedTuple):
    """A link to one of our pages."""

    label: str
    url: str
    is_current: bool


def sections(site: admin.AdminSite, request: HttpRequest) -> list[Section]:
    """Return links to our pages on this admin site that the user may view."""
    pages: list[tuple[type[Model], str, Any]] = [
        (Lock, "overview", _("overview")),
        (Lock, "changelist", Lock._meta.verbose_name_plural),
        (RateLimit, "changelist", RateLimit._meta.verbose_name_plural),
        (ParkedMessage, "changelist", ParkedMessage._meta.verbose_name_plural),
        (SweepEntry, "changelist", SweepEntry._meta.verbose_name_plural),
        (AuditEntry, "changelist", AuditEntry._meta.verbose_name_plural),
    ]
    found = []
    for model, page, label in pages:
        if may_view(site, request, model):
            with suppress(NoReverseMatch):  # a class of the project's own may have other pages
                url = page_url(site, page, model=model)
                found.append(Section(capfirst(str(label)), url, url == request.path))
    return found


def may_view(site: admin.AdminSite, request: HttpRequest, model: type[Model]) -> bool:
    """Return whether this admin site has our pages of ``model``, and the user may view them."""
    found = site._registry.get(model)
    return found is not None and bool(found.has_view_permission(request))


def query_string(parameters: Mapping[str, str]) -> str:
    """Return a query string without empty values; ``?`` if all are empty."""
    return "?" + urlencode({key: value for key, value in parameters.items() if value})


def parse_offset(text: str) -> int:
    """Return the offset of a page of a list; 0 if it is invalid."""
    return int(text) if text.isascii() and text.isdigit() and len(text) <= _DIGITS else 0


class OperatorAdmin(_ModelAdmin):
    """The base of our admins: operators look and act, and nobody edits.

    ``view_permission``, ``act_permission``: the permission to view, and the one to act in addition to it.
    """

    view_permission: ClassVar[str]
    act_permission: ClassVar[str]

    # Permissions

    def has_view_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """Return whether the user has the permission to view."""
        user: Any = request.user
        return bool(user.has_perm(self.view_permission))

    def has_act_permission(self, request: HttpRequest) -> bool:
        """Return whether the user may view and act, because the pages that act show what they act on."""
        user: Any = request.user
        return self.has_view_permission(request) and bool(user.has_perm(self.act_permission))

    def has_add_permission(self, request: HttpRequest) -> bool:
        """Return False: code creates what is shown here."""
        return False

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """Return False: there is nothing to edit."""
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """Return False: releasing, resetting and discarding are actions with a permission of their own."""
        return False

    def has_module_permission(self, request: HttpRequest) -> bool:
        """Return whether to show the model on the index."""
        return self.has_view_permission(request)

    # Pages

    def get_urls(self) -> list[URLPattern]:
        """Return the URLs, none of which has a transaction around its view.

        A row's revoked claim must be committed before its lock is released.
        """
        urls: list[URLPattern] = super().get_urls()
        for url in urls:
            outside_transactions(url.callback)
        return urls

    def page_url(self, page: str, name: str | None = None) -> str:
        """Return the URL of one of our pages on this admin site."""
        return page_url(self.admin_site, page, name, self.model)

    def actor(self, request: HttpRequest) -> Actor:
        """Return the actor for the audit trail."""
        user: Any = request.user
        return Actor(name=user.get_username(), user_id=user.pk)

    def page(
        self,
        request: HttpRequest,
        template: str,
        title: str,
        *,
        status: int = 200,
        breadcrumbs: tuple[tuple[str, str], ...] = (),
        **context: Any,
    ) -> TemplateResponse:
        """Render a page of the admin. ``breadcrumbs``: names and URLs of the pages between the list and this one."""
        context = {
            **self.admin_site.each_context(request),
            "opts": self.opts,
            "title": title,
            "subtitle": None,
            "list_url": self.page_url("changelist"),
            "list_title": capfirst(str(self.opts.verbose_name_plural)),
            "breadcrumbs": breadcrumbs,
            "listed": django.VERSION >= (6, 1),  # since then breadcrumbs are an <ol>
            "sections": sections(self.admin_site, request),
            "may_act": self.has_act_permission(request),
            **context,
        }
        return TemplateResponse(request, f"admin/tasklock/{template}.html", context, status=status)

    def confirm(
        self,
        request: HttpRequest,
        title: str,
        *,
        warning: Iterable[Any],
        button: Any,
        back: str,
        form: Form | None = None,
        danger: bool = False,
        chosen: Iterable[Any] = (),
        hidden: Iterable[tuple[str, Any]] = (),
        **context: Any,
    ) -> TemplateResponse:
        """Render the page that asks whether an action is meant; its POST to the same address acts.

        ``chosen``: what it acts on, a text for each; ``hidden``: further values of the POST; ``back``: the URL of the
        link that leaves. Without ``button`` there is nothing to confirm, and the page only says why.
        """
        context = {"warning": warning, "button": button, "back": back, "form": form, "danger": danger, **context}
        return self.page(request, "confirm", title, chosen=chosen, hidden=hidden, **context)


class StoreAdmin(OperatorAdmin):
    """The base of the admins of locks and limiters, which come from a store.

    ``refresh_every``: seconds between refreshes of an open page; 0: never.
    """

    refresh_every: ClassVar[int] = 5
    own_pages: ClassVar[Sequence[Page]]
    store_down_sentences: ClassVar[Sequence[Any]]
    """What an unavailable store means; after a POST that may have acted, the second one is said as well."""

    def get_urls(self) -> list[URLPattern]:
        """Replace all URLs of ModelAdmin, because the inherited views query a table."""

        def page(route: str, name: str, view: Any) -> URLPattern:
            wrapped: Any = outside_transactions(self.admin_site.admin_view(view))
            found: URLPattern = path(route, wrapped, name=f"{self.opts.app_label}_{self.opts.model_name}_{name}")
            return found

        return [  # with the names that the admin's own links use, and with ours
            page("", "changelist", self.changelist_view),
            page("add/", "add", self.add_view),
            *(page(one.route, one.name, one.make_view(self)) for one in self.own_pages),
            page("<path:object_id>/history/", "history", self.history_view),
            page("<path:object_id>/delete/", "delete", self.delete_view),
            page("<path:object_id>/change/", "change", self.change_view),
        ]

    def add_view(self, request: HttpRequest, form_url: str = "", extra_context: Any = None) -> HttpResponse:
        """Answer 403."""
        raise PermissionDenied

    def delete_view(self, request: HttpRequest, object_id: str, extra_context: Any = None) -> HttpResponse:
        """Answer 403."""
        raise PermissionDenied

    @check_access()
    def history_view(self, request: HttpRequest, object_id: str, extra_context: Any = None) -> HttpResponse:
        """Redirect to the page of this name, which shows its history."""
        return HttpResponseRedirect(self.page_url("change", unquote_name(object_id)) + "#tasklock-history")

    # Rendering

    def page(self, request: HttpRequest, template: str, title: str, **context: Any) -> TemplateResponse:
        """Render a page that may refresh itself."""
        return super().page(request, template, title, **{"refresh_every": self.refresh_every, **context})

    def row_url_getter(self, request: HttpRequest) -> Callable[[LockView | None], str]:
        """Return ``f(lock)``, the URL of its row's change page; empty if there is none or the user may not view it."""
        seen: dict[RowRef, str] = {}

        def of(lock: LockView | None) -> str:
            if lock is None or lock.row is None or other_tenant(lock.info.name):
                return ""
            if lock.row not in seen:
                seen[lock.row] = self._row_url(request, lock.row)
            return seen[lock.row]

        return of

    def say(self, request: HttpRequest, title: str, sentences: Iterable[Any], **context: Any) -> TemplateResponse:
        """Render a page that has nothing but these sentences."""
        return self.page(request, "message", title, sentences=sentences, **context)

    def store_down(self, request: HttpRequest, error: BackendUnavailable) -> HttpResponse:
        """Answer 503. The reason may contain hosts and ports, so it is only logged."""
        logger.warning("the admin cannot show %s: %s", self.opts.verbose_name_plural, error)
        unknown, acted, consequence = self.store_down_sentences
        sentences = [unknown, *([acted] if request.method == "POST" else []), consequence]
        retry_url = request.get_full_path() if request.method in ("GET", "HEAD") else self.page_url("changelist")
        title, context = _("The lock store cannot be reached"), {"look_up_url": "", "retry_url": retry_url}
        response = self.say(request, title, sentences, status=503, alarming=True, **context)
        response.headers["Retry-After"] = "10"
        return response

    def _row_url(self, request: HttpRequest, ref: RowRef) -> str:
        try:
            model: Any = apps.get_model(ref.model)
        except (LookupError, ValueError):
            return ""
        row_admin = self.admin_site._registry.get(model)
        if row_admin is None or not row_admin.has_view_or_change_permission(request):
            return ""
        page = f"admin:{model._meta.app_label}_{model._meta.model_name}_change"
        try:
            if ref.lookup == "pk":
                return reverse(page, args=(quote(ref.pk),), current_app=self.admin_site.name)
            found = reverse(f"{page}list", current_app=self.admin_site.name)  # change pages go by the primary key
            return f"{found}?{urlencode({ref.lookup: ref.pk})}"
        except NoReverseMatch:
            return ""
