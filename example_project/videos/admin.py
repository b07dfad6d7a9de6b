"""The admin of the site."""

from __future__ import annotations

from django.contrib import admin, messages
from django.db.models import QuerySet
from django.forms import ModelForm
from django.http import HttpRequest
from kombu.exceptions import OperationalError

from django_tasklock.admin import LockPanelMixin
from videos.models import Video
from videos.publishing import publish

__all__ = ["VideoAdmin"]


@admin.register(Video)
class VideoAdmin(LockPanelMixin, admin.ModelAdmin):
    """Videos, each with its lock. Fields that a running task owns are read-only."""

    list_display = ("title", "status", "progress", "created_at", "lock_epoch", "hls_file")
    list_filter = ("status",)
    search_fields = ("title",)
    readonly_fields = ("status", "progress", "hls_file", "lock_epoch", "created_at")
    actions = ("publish_again", "announce")

    def save_model(self, request: HttpRequest, obj: Video, form: ModelForm, change: bool) -> None:
        """Write only the edited fields: a full save would restore the status that the page was opened with."""
        obj.save(update_fields=form.changed_data if change else None)
        if not change:
            publish("process_video", video_id=obj.pk)

    @admin.action(description="Publish the task of the selected videos again")
    def publish_again(self, request: HttpRequest, queryset: QuerySet[Video]) -> None:
        """Publish one more message for each; it has no effect for videos that are busy or done."""
        self._publish(request, queryset, "process_video")

    @admin.action(description="Announce the selected videos in the catalogue")
    def announce(self, request: HttpRequest, queryset: QuerySet[Video]) -> None:
        """Call the limited API for each selected video."""
        self._publish(request, queryset, "announce")

    def _publish(self, request: HttpRequest, queryset: QuerySet[Video], task: str) -> None:
        try:
            for video in queryset:
                publish(task, video_id=video.pk)
        except OperationalError as error:
            self.message_user(request, f"The task queue cannot be reached: {error}", messages.ERROR)
            return
        self.message_user(request, f"Published {len(queryset)} messages.", messages.SUCCESS)
