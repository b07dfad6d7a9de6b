"""Rate limits and concurrency limiters in the admin: which pages there are, and who may see them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from django.http import HttpRequest, HttpResponse, HttpResponseRedirect

from django_tasklock.admin.base import LOOK_AND_ACT, Page, StoreAdmin, door, unquoted
from django_tasklock.admin.limits import actions, pages


class RateLimitAdmin(StoreAdmin):
    """List, page, reset, change, pause, release of a permit. ``tasklock.view_ratelimit`` lets one look,
    ``tasklock.change_ratelimit`` also act.

    ``list_per_page``: rate limits on a page. ``refresh_every``: seconds until a page that is open asks again; 0: never.
    """

    list_per_page = 50
    may_act: ClassVar[str] = "change"
    down: ClassVar[str] = "limits_down"

    own_pages: ClassVar[Sequence[Page]] = [
        Page("<path:object_id>/reset/", "reset", actions.reset, LOOK_AND_ACT, release=True),
        Page("<path:object_id>/limit/", "limit", actions.change, LOOK_AND_ACT, release=True),
        Page("<path:object_id>/pause/", "pause", actions.pause, LOOK_AND_ACT, release=True),
        Page("<path:object_id>/resume/", "resume", actions.resume, LOOK_AND_ACT, release=True),
        Page("<path:object_id>/release/", "release", actions.release, LOOK_AND_ACT, release=True),
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

    @door(release=True)
    def delete_view(self, request: HttpRequest, object_id: str, extra_context: Any = None) -> HttpResponse:
        """Reset: that is what deleting means here."""
        return HttpResponseRedirect(self.address("reset", unquoted(object_id)))
