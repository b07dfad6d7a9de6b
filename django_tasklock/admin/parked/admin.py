"""The admin of parked messages of all locks: its pages and their permissions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from django.http import HttpRequest, HttpResponse, HttpResponseRedirect

from django_tasklock.admin.base import READ_AND_POST, Page, StoreAdmin, check_access, query_string, unquote_name
from django_tasklock.admin.parked import actions, pages


class ParkedMessageAdmin(StoreAdmin):
    """Lists, shows, publishes, requeues and discards parked messages.

    ``tasklock.view_parkedmessage`` allows viewing, ``tasklock.change_parkedmessage`` also acting. ``list_per_page``:
    messages on a page. ``refresh_every``: seconds between refreshes of an open page; 0: never.
    """

    list_per_page = 50
    may_act: ClassVar[str] = "change"

    own_pages: ClassVar[Sequence[Page]] = [Page("act/", "act", actions.act_on_selected, READ_AND_POST, release=True)]

    @check_access()
    def changelist_view(self, request: HttpRequest, extra_context: Any = None) -> HttpResponse:
        """Show the list."""
        return pages.show_list(self, request, extra_context)

    @check_access()
    def change_view(
        self, request: HttpRequest, object_id: str, form_url: str = "", extra_context: Any = None
    ) -> HttpResponse:
        """Show the page of one message."""
        return pages.show_message(self, request, unquote_name(object_id), extra_context)

    @check_access()
    def history_view(self, request: HttpRequest, object_id: str, extra_context: Any = None) -> HttpResponse:
        """Redirect to the message's own page."""
        return HttpResponseRedirect(self.page_url("change", unquote_name(object_id)))

    @check_access(release=True)
    def delete_view(self, request: HttpRequest, object_id: str, extra_context: Any = None) -> HttpResponse:
        """Redirect to the confirmation of discarding the message."""
        chosen = query_string({"do": "discard", "message": unquote_name(object_id)})
        return HttpResponseRedirect(self.page_url("act") + chosen)
