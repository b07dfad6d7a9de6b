"""The same video CMS, ported: the task has a key, a guard and one message at a time; the sweep is the job."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from celery import shared_task
from django.db import transaction
from django.http import HttpRequest, JsonResponse
from django.shortcuts import get_object_or_404

from django_tasklock import StateGuard, current_claim
from django_tasklock.celery import OnceTask
from tests.ports.models import Media


class BadFile(Exception):
    """What ffmpeg says, sometimes only once."""


def transcode(token: str) -> Iterable[int]:
    """Stands in for ffmpeg: the progress in per cent."""
    return [50, 100]


def book_quota(media: Media) -> None:
    """Stands in for what else the transaction does, and may refuse."""


def upload(request: HttpRequest) -> JsonResponse:
    """The view behind the form."""
    with transaction.atomic():
        media = Media.objects.create()
        encode.delay_on_commit(media.token)
        book_quota(media)
    return JsonResponse({"id": media.token})


def again(request: HttpRequest, token: str) -> JsonResponse:
    """The button that a hurried user presses twice."""
    encode.delay(get_object_or_404(Media, token=token).token)
    return JsonResponse({"id": token})


def status(request: HttpRequest, token: str) -> JsonResponse:
    """The API that the player asks."""
    media = get_object_or_404(Media, token=token)
    running = encode.lock.is_locked(token)
    return JsonResponse({"id": token, "status": media.status, "progress": media.progress, "running": running})


@shared_task(
    base=OnceTask,
    bind=True,
    key="encode:{token}",
    timeout=7200,
    unique="until_start",
    on_conflict="skip",
    model=Media,
    lookup="token",
    guard=StateGuard(
        claim_from=["queued", "encoding"], claim_as="encoding", done="ready", failed="failed", retry="queued"
    ),
    autoretry_for=(BadFile,),
    max_retries=3,
    default_retry_delay=60,
)
def encode(self: Any, token: str) -> dict[str, str]:
    """Encode one file."""
    for percent in transcode(token):
        current_claim().update(progress=percent)
    return {"status": "success"}
