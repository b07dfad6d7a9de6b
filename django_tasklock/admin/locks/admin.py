"""Live locks in the admin: which pages there are, and who may see them. The rows come from the lock store."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.template.response import TemplateResponse

from django_tasklock.admin.base import LOOK_AND_ACT, StoreAdmin, door, unquoted
from django_tasklock.admin.locks import actions, detail, listing, overview, sweeps


class LockAdmin(StoreAdmin):
    """List, page, release. ``tasklock.view_lock`` lets one look, ``tasklock.release_lock`` also act.

    ``list_per_page``: locks on a page. ``refresh_every``: seconds until a page that is open asks again; 0: never.
    """

    list_per_page = 100
    may_act: ClassVar[str] = "release"

    def pages(self) -> Sequence[tuple[str, Any, str]]:
        """Return the pages by the names that the admin's own links use, and by ours."""
        return [
            ("", self.changelist_view, "changelist"),
            ("add/", self.add_view, "add"),
            ("look-up/", self.look_up_view, "look_up"),
            ("overview/", self.overview_view, "overview"),
            ("sweep/", self.sweep_view, "sweep"),
            ("sweep/<path:object_id>/", self.sweep_run_view, "sweep_run"),
            ("release/", self.release_selected_view, "release_selected"),
            ("<path:object_id>/release/", self.release_view, "release"),
            ("<path:object_id>/ask/", self.ask_view, "ask"),
            ("<path:object_id>/history/", self.history_view, "history"),
            ("<path:object_id>/delete/", self.delete_view, "delete"),
            ("<path:object_id>/change/", self.change_view, "change"),
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

    @door()
    def look_up_view(self, request: HttpRequest) -> HttpResponse:
        """Redirect to the page of the name that was typed."""
        return detail.look_up(self, request)

    @door()
    def overview_view(self, request: HttpRequest) -> HttpResponse:
        """Show how things stand, and how they went in the last hours."""
        return overview.show(self, request)

    @door(methods=LOOK_AND_ACT)
    def sweep_view(self, request: HttpRequest) -> HttpResponse:
        """Show the last runs of the sweep; POST starts one, for those who may release."""
        return sweeps.show(self, request)

    @door()
    def sweep_run_view(self, request: HttpRequest, object_id: str) -> HttpResponse:
        """Show one run of the sweep."""
        return sweeps.one(self, request, unquoted(object_id))

    @door(methods=LOOK_AND_ACT, release=True)
    def release_view(self, request: HttpRequest, object_id: str) -> HttpResponse:
        """Confirm, then release."""
        return actions.release(self, request, unquoted(object_id))

    @door(methods=LOOK_AND_ACT, release=True)
    def ask_view(self, request: HttpRequest, object_id: str) -> HttpResponse:
        """Confirm, then ask the holder."""
        return actions.ask(self, request, unquoted(object_id))

    @door(methods=LOOK_AND_ACT, release=True)
    def release_selected_view(self, request: HttpRequest) -> HttpResponse:
        """Confirm, then release those that were ticked."""
        return actions.release_selected(self, request)

    @door()
    def history_view(self, request: HttpRequest, object_id: str, extra_context: Any = None) -> HttpResponse:
        """Redirect to the lock's own page, which has its history."""
        return HttpResponseRedirect(self.address("change", unquoted(object_id)) + "#tasklock-history")

    @door(release=True)
    def delete_view(self, request: HttpRequest, object_id: str, extra_context: Any = None) -> HttpResponse:
        """Release: that is what deleting means here."""
        return HttpResponseRedirect(self.address("release", unquoted(object_id)))

    def page(self, request: HttpRequest, template: str, title: str, **context: Any) -> TemplateResponse:
        """Render a page with the form that looks a name up."""
        return super().page(request, template, title, **{"look_up_url": self.address("look_up"), **context})
