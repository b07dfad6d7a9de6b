"""The admin of the site."""

from __future__ import annotations

from celery import Task
from django.contrib import admin, messages
from django.db.models import QuerySet
from django.forms import ModelForm
from django.http import HttpRequest
from kombu.exceptions import OperationalError

from django_tasklock.admin import LockPanelMixin
from videos.models import Attempt, Skip, Video
from videos.tasks import announce, process_video

__all__ = ["AttemptInline", "SkipAdmin", "VideoAdmin"]


class AttemptInline(admin.TabularInline):
    """The attempts that the workers recorded; read-only."""

    model = Attempt
    extra = 0
    can_delete = False
    readonly_fields = ("epoch", "worker", "pid", "task_id", "started_at", "transcoded_at", "outcome")

    def has_add_permission(self, request: HttpRequest, obj: Video | None = None) -> bool:
        """Only workers add attempts."""
        return False


@admin.register(Video)
class VideoAdmin(LockPanelMixin, admin.ModelAdmin):
    """Videos, each with its lock. Fields that a running task owns are read-only."""

    list_display = ("title", "status", "progress", "created_at", "lock_epoch", "hls_file")
    list_filter = ("status",)
    search_fields = ("title",)
    readonly_fields = ("status", "progress", "duration", "hls_file", "thumbnail", "lock_epoch", "created_at")
    inlines = (AttemptInline,)
    actions = ("publish_again", "announce")

    def save_model(self, request: HttpRequest, obj: Video, form: ModelForm, change: bool) -> None:
        """Write only the edited fields: a full save would restore the status that the page was opened with."""
        obj.save(update_fields=form.changed_data if change else None)
        if not change:
            process_video.delay_on_commit(video_id=obj.pk)

    @admin.action(description="Publish the task of the selected videos again")
    def publish_again(self, request: HttpRequest, queryset: QuerySet[Video]) -> None:
        """Publish one more message for each; it has no effect for videos that are busy or done."""
        self._publish(request, queryset, process_video)

    @admin.action(description="Announce the selected videos in the catalogue")
    def announce(self, request: HttpRequest, queryset: QuerySet[Video]) -> None:
        """Call the limited API for each selected video."""
        self._publish(request, queryset, announce)

    def _publish(self, request: HttpRequest, queryset: QuerySet[Video], task: Task) -> None:
        try:
            for video in queryset:
                task.delay(video_id=video.pk)
        except OperationalError as error:
            self.message_user(request, f"The task queue cannot be reached: {error}", messages.ERROR)
            return
        self.message_user(request, f"Published {len(queryset)} messages.", messages.SUCCESS)


@admin.register(Skip)
class SkipAdmin(admin.ModelAdmin):
    """Messages that were skipped."""

    list_display = ("video", "reason", "at")
    list_filter = ("reason",)
    list_select_related = ("video",)

    def has_add_permission(self, request: HttpRequest) -> bool:
        """Only workers add skips."""
        return False

    def has_change_permission(self, request: HttpRequest, obj: Skip | None = None) -> bool:
        """A log cannot be edited."""
        return False
