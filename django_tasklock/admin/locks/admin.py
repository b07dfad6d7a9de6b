"""The admin of live locks, which come from the lock store: its pages and their permissions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.utils.translation import gettext_lazy as _

from django_tasklock.admin.base import READ_AND_POST, Page, StoreAdmin, check_access, unquote_name
from django_tasklock.admin.locks import actions, detail, listing, overview


class LockAdmin(StoreAdmin):
    """Lists, shows and releases locks. ``tasklock.view_lock`` allows viewing, ``tasklock.release_lock`` also acting.

    ``list_per_page``: locks on a page. ``refresh_every``: seconds between refreshes of an open page; 0: never.
    """

    list_per_page = 100
    view_permission = "tasklock.view_lock"
    act_permission = "tasklock.release_lock"
    store_down_sentences: ClassVar = (
        _("The lock store does not answer, so it is not known what is locked."),
        _("What you asked for may have been done nevertheless: look at the lock once the store answers."),
        _("Tasks go on as their settings say for this case. The reason is in the server's log."),
    )

    own_pages: ClassVar[Sequence[Page]] = [
        Page("look-up/", "look_up", detail.look_up),
        Page("overview/", "overview", overview.show),
        Page("release/", "release_selected", actions.release_selected, READ_AND_POST, act=True),
        Page("<path:object_id>/release/", "release", actions.release, READ_AND_POST, act=True),
        Page("<path:object_id>/ask/", "ask", actions.ask, READ_AND_POST, act=True),
    ]

    @check_access()
    def changelist_view(self, request: HttpRequest, extra_context: Any = None) -> HttpResponse:
        """Show the list."""
        return listing.show(self, request, extra_context)

    @check_access()
    def change_view(
        self, request: HttpRequest, object_id: str, form_url: str = "", extra_context: Any = None
    ) -> HttpResponse:
        """Show the page of one name, held or free."""
        return detail.show(self, request, unquote_name(object_id), extra_context)

    @check_access(act=True)
    def delete_view(self, request: HttpRequest, object_id: str, extra_context: Any = None) -> HttpResponse:
        """Redirect to the confirmation of releasing the lock."""
        return HttpResponseRedirect(self.page_url("release", unquote_name(object_id)))

    def page(self, request: HttpRequest, template: str, title: str, **context: Any) -> TemplateResponse:
        """Render a page that includes the search form for a name."""
        return super().page(request, template, title, **{"look_up_url": self.page_url("look_up"), **context})
