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
    """What the workers noted; not to be edited."""

    model = Attempt
    extra = 0
    can_delete = False
    readonly_fields = ("epoch", "worker", "pid", "task_id", "started_at", "transcoded_at", "outcome")

    def has_add_permission(self, request: HttpRequest, obj: Video | None = None) -> bool:
        """Only workers add attempts."""
        return False


@admin.register(Video)
class VideoAdmin(LockPanelMixin, admin.ModelAdmin):
    """Videos, each with its lock; what a running task owns can only be looked at."""

    list_display = ("title", "status", "progress", "created_at", "lock_epoch", "hls_file")
    list_filter = ("status",)
    search_fields = ("title",)
    readonly_fields = ("status", "progress", "duration", "hls_file", "thumbnail", "lock_epoch", "created_at")
    inlines = (AttemptInline,)
    actions = ("publish_again", "announce")

    def save_model(self, request: HttpRequest, obj: Video, form: ModelForm, change: bool) -> None:
        """Write only what was edited: a full save would put back the status the page was opened with."""
        obj.save(update_fields=form.changed_data if change else None)
        if not change:
            process_video.delay_on_commit(video_id=obj.pk)

    @admin.action(description="Publish the task of the selected videos again")
    def publish_again(self, request: HttpRequest, queryset: QuerySet[Video]) -> None:
        """One more message for each; harmless for those that are busy or done."""
        self._publish(request, queryset, process_video)

    @admin.action(description="Announce the selected videos in the catalogue")
    def announce(self, request: HttpRequest, queryset: QuerySet[Video]) -> None:
        """A call of a limited API for each: select as many as you like."""
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
    """Messages that had nothing to do."""

    list_display = ("video", "reason", "at")
    list_filter = ("reason",)
    list_select_related = ("video",)

    def has_add_permission(self, request: HttpRequest) -> bool:
        """Only workers add skips."""
        return False

    def has_change_permission(self, request: HttpRequest, obj: Skip | None = None) -> bool:
        """A log is not edited."""
        return False
