"""Parked messages in the admin, over all locks: which pages there are, and who may see them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from django.http import HttpRequest, HttpResponse, HttpResponseRedirect

from django_tasklock.admin.base import LOOK_AND_ACT, StoreAdmin, door, query_string, unquoted
from django_tasklock.admin.parked import actions, pages


class ParkedMessageAdmin(StoreAdmin):
    """List, page, publish, requeue, discard. ``tasklock.view_parkedmessage`` lets one look,
    ``tasklock.change_parkedmessage`` also act.

    ``list_per_page``: messages on a page. ``refresh_every``: seconds until a page that is open asks again; 0: never.
    """

    list_per_page = 50
    may_act: ClassVar[str] = "change"

    def pages(self) -> Sequence[tuple[str, Any, str]]:
        """Return the pages by the names that the admin's own links use, and by ours."""
        return [
            ("", self.changelist_view, "changelist"),
            ("add/", self.add_view, "add"),
            ("act/", self.act_view, "act"),
            ("<path:object_id>/history/", self.history_view, "history"),
            ("<path:object_id>/delete/", self.delete_view, "delete"),
            ("<path:object_id>/change/", self.change_view, "change"),
        ]

    @door()
    def changelist_view(self, request: HttpRequest, extra_context: Any = None) -> HttpResponse:
        """Show the list."""
        return pages.listing(self, request, extra_context)

    @door()
    def change_view(
        self, request: HttpRequest, object_id: str, form_url: str = "", extra_context: Any = None
    ) -> HttpResponse:
        """Show everything about one message."""
        return pages.detail(self, request, unquoted(object_id), extra_context)

    @door(methods=LOOK_AND_ACT, release=True)
    def act_view(self, request: HttpRequest) -> HttpResponse:
        """Confirm, then publish, requeue or discard the messages that were chosen."""
        return actions.act(self, request)

    @door()
    def history_view(self, request: HttpRequest, object_id: str, extra_context: Any = None) -> HttpResponse:
        """Redirect to the message's own page."""
        return HttpResponseRedirect(self.address("change", unquoted(object_id)))

    @door(release=True)
    def delete_view(self, request: HttpRequest, object_id: str, extra_context: Any = None) -> HttpResponse:
        """Discard: that is what deleting means here."""
        chosen = query_string({"do": "discard", "message": unquoted(object_id)})
        return HttpResponseRedirect(self.address("act") + chosen)
