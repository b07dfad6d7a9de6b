"""The tables of the site. ``Video`` is the guarded row; the other tables are written along with it."""

from __future__ import annotations

import posixpath

from django.conf import settings
from django.core.validators import FileExtensionValidator
from django.db import models

from django_tasklock.models import GuardedModel

__all__ = ["MASTER", "THUMBNAIL", "Attempt", "Rendition", "Skip", "Video"]

MASTER = "master.m3u8"
THUMBNAIL = "thumbnail.jpg"


class Video(GuardedModel):
    """One upload. ``GuardedModel`` adds the two columns by which the row refuses an overtaken worker.

    While a task runs, ``status`` and everything below it belong to the claim: change them with
    a conditional ``filter(...).update(...)``, never with ``save()``, which writes every column.
    """

    class Status(models.TextChoices):
        """From the upload to the stream."""

        UPLOADING = "uploading", "waiting"
        PROCESSING = "processing", "starting"
        TRANSCODING = "transcoding", "transcoding"
        READY = "ready", "ready"
        FAILED = "failed", "failed"

    title = models.CharField(max_length=200)
    upload = models.FileField(
        upload_to="uploads/", validators=[FileExtensionValidator(["mp4", "m4v", "mov", "mkv", "webm", "avi"])]
    )
    created_at = models.DateTimeField(auto_now_add=True)
    status = models.CharField(max_length=20, choices=Status, default=Status.UPLOADING)
    progress = models.PositiveSmallIntegerField(default=0, help_text="Percent.")
    # Text, not a FileField: a FileField stores "" when it is empty, and the guard asks for NULL.
    hls_file = models.CharField(max_length=200, null=True, blank=True, editable=False)  # noqa: DJ001

    class Meta:
        ordering = ("pk",)

    def __str__(self) -> str:
        return self.title

    @property
    def hls_url(self) -> str:
        """Address of the master playlist; empty until there is one."""
        return posixpath.join(settings.MEDIA_URL, self.hls_file) if self.hls_file else ""

    @property
    def thumbnail_url(self) -> str:
        """Address of the thumbnail, which lies beside the playlist; empty until there is one."""
        return self.hls_url.replace(MASTER, THUMBNAIL)

    @property
    def is_busy(self) -> bool:
        """Whether the page shows progress."""
        return self.status in (self.Status.PROCESSING, self.Status.TRANSCODING)


class Rendition(models.Model):
    """One resolution of a video's stream."""

    video = models.ForeignKey(Video, on_delete=models.CASCADE, related_name="renditions")
    height = models.PositiveIntegerField()

    class Meta:
        ordering = ("video", "height")

    def __str__(self) -> str:
        return f"{self.height}p"


class Attempt(models.Model):
    """One run of the transcoder, recorded by the worker that ran it, with its outcome.

    Deliberately not guarded: it is the evidence that each video was transcoded once.
    A row that stays ``running`` although its video was claimed again belongs to a worker that was killed.
    """

    class Outcome(models.TextChoices):
        """How it ended."""

        RUNNING = "running", "running"
        PUBLISHED = "published", "published"
        FAILED = "failed", "failed"
        OVERTAKEN = "overtaken", "overtaken"

    video = models.ForeignKey(Video, on_delete=models.CASCADE, related_name="attempts")
    epoch = models.BigIntegerField(help_text="Which claim of the row this was.")
    worker = models.CharField(max_length=200)
    pid = models.PositiveIntegerField()
    task_id = models.CharField(max_length=64)
    started_at = models.DateTimeField(auto_now_add=True)
    outcome = models.CharField(max_length=20, choices=Outcome, default=Outcome.RUNNING)

    class Meta:
        ordering = ("pk",)

    def __str__(self) -> str:
        return f"{self.video_id}/{self.epoch} on {self.worker}: {self.outcome}"


class Skip(models.Model):
    """One message that was skipped because the video was busy or done."""

    video = models.ForeignKey(Video, on_delete=models.CASCADE, related_name="skips")
    reason = models.CharField(max_length=40)
    at = models.DateTimeField(auto_now_add=True)

    class Meta:
        ordering = ("pk",)

    def __str__(self) -> str:
        return f"{self.video_id}: {self.reason}"
