"""The admin of rate limits and concurrency limiters: its pages and their permissions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.utils.translation import gettext_lazy as _

from django_tasklock.admin.base import READ_AND_POST, Page, StoreAdmin, check_access, unquote_name
from django_tasklock.admin.limits import actions, pages


class RateLimitAdmin(StoreAdmin):
    """Lists and shows limiters, resets, changes and pauses rate limits, and releases permits.

    ``tasklock.view_ratelimit`` allows viewing, ``tasklock.change_ratelimit`` also acting. ``list_per_page``: limits on
    a page.
    """

    list_per_page = 50
    view_permission = "tasklock.view_ratelimit"
    act_permission = "tasklock.change_ratelimit"
    store_down_sentences: ClassVar = (
        _("The lock store does not answer, so the state of the limits is not known."),
        _("What you asked for may have been done nevertheless: look at the limiter once the store answers."),
        _("Calls go on as their limiters say for this case. The reason is in the server's log."),
    )

    own_pages: ClassVar[Sequence[Page]] = [
        Page("<path:object_id>/reset/", "reset", actions.reset, READ_AND_POST, act=True),
        Page("<path:object_id>/limit/", "limit", actions.change, READ_AND_POST, act=True),
        Page("<path:object_id>/pause/", "pause", actions.pause, READ_AND_POST, act=True),
        Page("<path:object_id>/resume/", "resume", actions.resume, READ_AND_POST, act=True),
        Page("<path:object_id>/release/", "release", actions.release, READ_AND_POST, act=True),
    ]

    @check_access()
    def changelist_view(self, request: HttpRequest, extra_context: Any = None) -> HttpResponse:
        """Show the list."""
        return pages.show_list(self, request, extra_context)

    @check_access()
    def change_view(
        self, request: HttpRequest, object_id: str, form_url: str = "", extra_context: Any = None
    ) -> HttpResponse:
        """Show the page of one limiter."""
        return pages.show_limit(self, request, unquote_name(object_id), extra_context)

    @check_access(act=True)
    def delete_view(self, request: HttpRequest, object_id: str, extra_context: Any = None) -> HttpResponse:
        """Redirect to the confirmation of resetting the limit."""
        return HttpResponseRedirect(self.page_url("reset", unquote_name(object_id)))
