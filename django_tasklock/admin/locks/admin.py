"""Live locks in the admin: which pages there are, and who may see them. The rows come from the lock store."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.template.response import TemplateResponse

from django_tasklock.admin.base import LOOK_AND_ACT, Page, StoreAdmin, door, unquoted
from django_tasklock.admin.locks import actions, detail, listing, overview, sweeps


class LockAdmin(StoreAdmin):
    """List, page, release. ``tasklock.view_lock`` lets one look, ``tasklock.release_lock`` also act.

    ``list_per_page``: locks on a page. ``refresh_every``: seconds until a page that is open asks again; 0: never.
    """

    list_per_page = 100
    may_act: ClassVar[str] = "release"

    own_pages: ClassVar[Sequence[Page]] = [
        Page("look-up/", "look_up", detail.look_up),
        Page("overview/", "overview", overview.show),
        Page("sweep/", "sweep", sweeps.show, LOOK_AND_ACT),  # POST only for those who may release
        Page("sweep/<path:object_id>/", "sweep_run", sweeps.one),
        Page("release/", "release_selected", actions.release_selected, LOOK_AND_ACT, release=True),
        Page("<path:object_id>/release/", "release", actions.release, LOOK_AND_ACT, release=True),
        Page("<path:object_id>/ask/", "ask", actions.ask, LOOK_AND_ACT, release=True),
    ]

    @door()
    def changelist_view(self, request: HttpRequest, extra_context: Any = None) -> HttpResponse:
        """Show the list."""
        return listing.show(self, request, extra_context)

    @door()
    def change_view(
        self, request: HttpRequest, object_id: str, form_url: str = "", extra_context: Any = None
    ) -> HttpResponse:
        """Show everything about one name, held or free."""
        return detail.show(self, request, unquoted(object_id), extra_context)

    @door(release=True)
    def delete_view(self, request: HttpRequest, object_id: str, extra_context: Any = None) -> HttpResponse:
        """Release: that is what deleting means here."""
        return HttpResponseRedirect(self.address("release", unquoted(object_id)))

    def page(self, request: HttpRequest, template: str, title: str, **context: Any) -> TemplateResponse:
        """Render a page with the form that looks a name up."""
        return super().page(request, template, title, **{"look_up_url": self.address("look_up"), **context})
