"""The pages. A task that is published twice runs once, so the views need not prevent that."""

from __future__ import annotations

from django.contrib import messages
from django.db import transaction
from django.db.models import Count, QuerySet
from django.forms import modelform_factory
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_GET, require_http_methods, require_POST
from kombu.exceptions import OperationalError

from django_tasklock import BackendUnavailable
from videos.locks import is_video_locked
from videos.models import Video
from videos.publishing import publish

__all__ = ["cards", "detail", "index", "process"]

UNSENT = "Saved, but the task queue cannot be reached: press “Process” later."
UploadForm = modelform_factory(Video, fields=("title", "upload"))


@require_http_methods(["GET", "HEAD", "POST"])
def index(request: HttpRequest) -> HttpResponse:
    """Show all videos, and the form to upload one."""
    form = UploadForm(request.POST or None, request.FILES or None)
    if request.method == "POST" and form.is_valid():
        try:
            with transaction.atomic():
                video = form.save()
                publish("process_video", video_id=video.pk)
            messages.success(request, f"“{video}” is uploaded.")
        except OperationalError:
            messages.error(request, UNSENT)
        return redirect("index")
    return render(request, "videos/index.html", {"form": form, "videos": _videos()})


@never_cache
@require_GET
def cards(request: HttpRequest) -> HttpResponse:
    """Return the list alone, which the page's script polls."""
    return render(request, "videos/_cards.html", {"videos": _videos()})


@require_GET
def detail(request: HttpRequest, video_id: int) -> HttpResponse:
    """Show one video: the player, its renditions, and every attempt to transcode it."""
    return render(request, "videos/detail.html", {"video": get_object_or_404(_videos(), pk=video_id)})


@require_POST
def process(request: HttpRequest, video_id: int) -> HttpResponse:
    """Publish the task again; a failed video can be claimed again."""
    video = get_object_or_404(Video, pk=video_id)
    try:
        if is_video_locked(video.pk):
            messages.info(request, f"“{video}” is being processed already.")
        else:
            with transaction.atomic():
                failed = Video.objects.filter(pk=video.pk, status=Video.Status.FAILED)
                failed.update(status=Video.Status.UPLOADING, progress=0)
                publish("process_video", video_id=video.pk)
            messages.success(request, f"“{video}” is queued.")
    except (BackendUnavailable, OperationalError):
        messages.error(request, UNSENT)
    return redirect("index")


def _videos() -> QuerySet[Video]:
    counts = {"attempt_count": Count("attempts", distinct=True), "skip_count": Count("skips", distinct=True)}
    return Video.objects.annotate(**counts).prefetch_related("renditions")
