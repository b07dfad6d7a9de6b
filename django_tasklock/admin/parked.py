"""Parked messages in the admin: a table to look at, and what to do with the dead."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from django.contrib import admin, messages
from django.db.models import QuerySet
from django.http import HttpRequest
from django.utils.translation import gettext as _, gettext_lazy, ngettext

from django_tasklock import operations
from django_tasklock.models import ParkedMessage
from django_tasklock.operations.values import Actor

if TYPE_CHECKING:
    _ModelAdmin = admin.ModelAdmin[ParkedMessage]
else:
    _ModelAdmin = admin.ModelAdmin


class ParkedMessageAdmin(_ModelAdmin):
    """``tasklock.view_parkedmessage`` lets one look, ``tasklock.change_parkedmessage`` also requeue and discard."""

    list_display = ("name", "task", "task_id", "state", "since", "crashes", "attempts", "problem")
    list_filter = ("state",)
    search_fields = ("name", "task", "task_id")
    ordering = ("ticket", "id")
    fields = ("name", "task", "task_id", "mode", "state", "since", "sent", "crashes", "attempts", "problem")
    readonly_fields = fields
    actions = ("requeue_selected", "discard_selected")

    def has_add_permission(self, request: HttpRequest) -> bool:
        """Refuse: workers park messages, people do not."""
        return False

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """Refuse: there is nothing to edit."""
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """Refuse: a message is discarded, so that nobody waits for its result."""
        return False

    def has_act_permission(self, request: HttpRequest) -> bool:
        """Ask for the permission to requeue and discard."""
        user: Any = request.user
        return bool(user.has_perm("tasklock.view_parkedmessage") and user.has_perm("tasklock.change_parkedmessage"))

    @admin.display(description=gettext_lazy("parked at"), ordering="parked_at")
    def since(self, row: ParkedMessage) -> datetime:
        """Show when it was parked."""
        return datetime.fromtimestamp(row.parked_at / 1000, UTC)

    @admin.action(description=gettext_lazy("Let the selected dead messages wait again"), permissions=["act"])
    def requeue_selected(self, request: HttpRequest, rows: QuerySet[ParkedMessage]) -> None:
        """Requeue those of the selected that are dead."""
        self._each(request, rows, operations.requeue_parked)

    @admin.action(description=gettext_lazy("Discard the selected messages"), permissions=["act"])
    def discard_selected(self, request: HttpRequest, rows: QuerySet[ParkedMessage]) -> None:
        """Discard those of the selected that are parked or dead."""
        self._each(request, rows, operations.discard_parked)

    def _each(self, request: HttpRequest, rows: QuerySet[ParkedMessage], act: Callable[..., str]) -> None:
        user: Any = request.user
        by = Actor(name=user.get_username(), user_id=user.pk)
        done = 0
        for task_id in rows.values_list("task_id", flat=True):
            obstacle = act(task_id, by=by)
            done += not obstacle
            if obstacle:
                text = _("Message %(id)s: not done: %(why)s.") % {"id": task_id, "why": obstacle}
                self.message_user(request, text, messages.WARNING)
        if done:
            text = ngettext("%(n)d message: done.", "%(n)d messages: done.", done) % {"n": done}
            self.message_user(request, text, messages.SUCCESS)
