"""Count skipped messages, by receivers of the library's signals."""

from __future__ import annotations

from typing import Any

from celery import current_task

from django_tasklock.signals import claim_rejected, lock_conflict
from videos.locks import get_video_lock_key
from videos.models import Skip, Video

__all__ = ["connect"]

_PREFIX = get_video_lock_key(0).removesuffix("0")


def connect() -> None:
    """Connect the receivers in this process."""
    lock_conflict.connect(_on_conflict, dispatch_uid="videos.skips")
    claim_rejected.connect(_on_rejected, dispatch_uid="videos.skips")


def _on_conflict(sender: str, **details: Any) -> None:
    if current_task and sender.startswith(_PREFIX):  # a lock can also be acquired outside of a task
        Skip.objects.create(video_id=int(sender.removeprefix(_PREFIX)), reason="already_processing")


def _on_rejected(sender: str, *, model: type[object], pk: Any, state: object, **details: Any) -> None:
    if model is Video and state is not None:  # no state: there is no such video
        Skip.objects.create(video_id=pk, reason="invalid_state")
