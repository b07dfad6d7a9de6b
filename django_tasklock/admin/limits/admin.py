"""Rate limits and concurrency limiters in the admin: which pages there are, and who may see them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from django.http import HttpRequest, HttpResponse, HttpResponseRedirect

from django_tasklock.admin.base import LOOK_AND_ACT, StoreAdmin, door, unquoted
from django_tasklock.admin.limits import actions, pages


class RateLimitAdmin(StoreAdmin):
    """List, page, reset, change, pause, release of a permit. ``tasklock.view_ratelimit`` lets one look,
    ``tasklock.change_ratelimit`` also act.

    ``list_per_page``: rate limits on a page. ``refresh_every``: seconds until a page that is open asks again; 0: never.
    """

    list_per_page = 50
    may_act: ClassVar[str] = "change"
    down: ClassVar[str] = "limits_down"

    def pages(self) -> Sequence[tuple[str, Any, str]]:
        """Return the pages by the names that the admin's own links use, and by ours."""
        return [
            ("", self.changelist_view, "changelist"),
            ("add/", self.add_view, "add"),
            ("<path:object_id>/reset/", self.reset_view, "reset"),
            ("<path:object_id>/limit/", self.limit_view, "limit"),
            ("<path:object_id>/pause/", self.pause_view, "pause"),
            ("<path:object_id>/resume/", self.resume_view, "resume"),
            ("<path:object_id>/release/", self.release_view, "release"),
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
        """Show everything about one name."""
        return pages.detail(self, request, unquoted(object_id), extra_context)

    @door(methods=LOOK_AND_ACT, release=True)
    def reset_view(self, request: HttpRequest, object_id: str) -> HttpResponse:
        """Confirm, then reset."""
        return actions.reset(self, request, unquoted(object_id))

    @door(methods=LOOK_AND_ACT, release=True)
    def limit_view(self, request: HttpRequest, object_id: str) -> HttpResponse:
        """Say how much of the limit is to be in force."""
        return actions.change(self, request, unquoted(object_id))

    @door(methods=LOOK_AND_ACT, release=True)
    def pause_view(self, request: HttpRequest, object_id: str) -> HttpResponse:
        """Say for how long nobody is to go."""
        return actions.pause(self, request, unquoted(object_id))

    @door(methods=LOOK_AND_ACT, release=True)
    def resume_view(self, request: HttpRequest, object_id: str) -> HttpResponse:
        """Confirm, then end the pause."""
        return actions.resume(self, request, unquoted(object_id))

    @door(methods=LOOK_AND_ACT, release=True)
    def release_view(self, request: HttpRequest, object_id: str) -> HttpResponse:
        """Confirm, then take the permit away from ``?member=``."""
        return actions.release(self, request, unquoted(object_id))

    @door()
    def history_view(self, request: HttpRequest, object_id: str, extra_context: Any = None) -> HttpResponse:
        """Redirect to the limiter's own page, which has its history."""
        return HttpResponseRedirect(self.address("change", unquoted(object_id)) + "#tasklock-history")

    @door(release=True)
    def delete_view(self, request: HttpRequest, object_id: str, extra_context: Any = None) -> HttpResponse:
        """Reset: that is what deleting means here."""
        return HttpResponseRedirect(self.address("reset", unquoted(object_id)))
