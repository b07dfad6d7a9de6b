"""A video CMS as its authors wrote it: a pending key and a lock in the cache, and a job that frees what looks stale."""

from __future__ import annotations

import uuid
from collections.abc import Iterable
from datetime import timedelta
from typing import Any

from celery import shared_task
from django.core.cache import cache
from django.db import transaction
from django.http import HttpRequest, JsonResponse
from django.shortcuts import get_object_or_404
from django.utils.timezone import now

from tests.ports.models import OldMedia as Media


class BadFile(Exception):
    """What ffmpeg says, sometimes only once."""


def transcode(token: str) -> Iterable[int]:
    """Stands in for ffmpeg: the progress in per cent."""
    return [50, 100]


def book_quota(media: Media) -> None:
    """Stands in for what else the transaction does, and may refuse."""


def publish(token: str) -> None:
    """Publish the task, unless it waits already."""
    if cache.add(f"pending:{token}", 1, 3600):
        encode.delay(token)


def upload(request: HttpRequest) -> JsonResponse:
    """The view behind the form."""
    with transaction.atomic():
        media = Media.objects.create()
        publish(media.token)
        book_quota(media)
    return JsonResponse({"id": media.token})


def again(request: HttpRequest, token: str) -> JsonResponse:
    """The button that a hurried user presses twice."""
    publish(get_object_or_404(Media, token=token).token)
    return JsonResponse({"id": token})


def status(request: HttpRequest, token: str) -> JsonResponse:
    """The API that the player asks."""
    media = get_object_or_404(Media, token=token)
    running = cache.get(f"encode:{token}") is not None
    return JsonResponse({"id": token, "status": media.status, "progress": media.progress, "running": running})


def acquire(token: str) -> str | None:
    """Take the lock; the text proves whose it is."""
    mine = uuid.uuid4().hex
    return mine if cache.add(f"encode:{token}", mine, 7200) else None


def release(token: str, mine: str) -> None:
    """Free the lock if it is still one's own."""
    if cache.get(f"encode:{token}") == mine:
        cache.delete(f"encode:{token}")


@shared_task(bind=True, max_retries=3)
def encode(self: Any, token: str) -> dict[str, str]:
    """Encode one file."""
    cache.delete(f"pending:{token}")
    if not Media.objects.filter(token=token).exists():
        raise self.retry(countdown=5)  # it may not be committed yet
    if (mine := acquire(token)) is None:
        return {"status": "skipped", "reason": "already_processing"}
    try:
        rows = Media.objects.filter(token=token)
        if not rows.filter(status__in=["queued", "encoding"]).update(status="encoding", updated_at=now()):
            return {"status": "skipped", "reason": "invalid_state"}
        try:
            for percent in transcode(token):
                rows.update(progress=percent, updated_at=now())
        except BadFile as error:
            last = self.request.retries >= self.max_retries
            rows.update(status="failed" if last else "queued", updated_at=now())
            if last:
                raise
            raise self.retry(exc=error, countdown=60) from error
        rows.update(status="ready", updated_at=now())
        return {"status": "success"}
    finally:
        release(token, mine)


@shared_task
def free_stale() -> None:
    """Every ten minutes: what has not been written to for three hours belongs to a dead worker."""
    for media in Media.objects.filter(status="encoding", updated_at__lt=now() - timedelta(hours=3)):
        Media.objects.filter(pk=media.pk).update(status="queued", updated_at=now())
        cache.delete(f"encode:{media.token}")
        publish(media.token)
