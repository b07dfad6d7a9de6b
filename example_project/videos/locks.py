"""The lock of a video: the decorator for its task, and the plain functions for everything else."""

from __future__ import annotations

from django.db.models import Q

from django_tasklock import StateGuard, acquire_task_lock, is_task_locked, model_lock, release_task_lock
from videos.models import Video

__all__ = ["acquire_video_lock", "get_video_lock_key", "is_video_locked", "release_video_lock", "video_lock"]

KEY = "video_processing_lock:{video_id}"

video_lock = model_lock(
    Video,
    KEY,
    pk="video_id",
    timeout=7200,
    release_connections=True,  # a transcode takes long, and needs the database for a moment now and then
    guard=StateGuard(
        field="status",
        claim_from=["uploading", "processing", "transcoding"],
        exclude=Q(hls_file__isnull=False),
        claim_as="processing",
        retry="uploading",
        done="ready",
        failed="failed",
    ),
)
"""First the lock, then the row: a worker that dies frees the video within the lease, and one
that wakes up after its lease can no longer write to the row."""


def get_video_lock_key(video_id: int) -> str:
    """Return the name of the lock of a video."""
    return KEY.format(video_id=video_id)


def acquire_video_lock(video_id: int, timeout: float = 3600) -> bool:
    """Acquire the lock of a video for at most ``timeout`` seconds; return ``False`` if it is busy."""
    return acquire_task_lock(get_video_lock_key(video_id), timeout)


def release_video_lock(video_id: int) -> bool:
    """Release the lock that this process acquired; return ``False`` if it does not hold the lock."""
    return release_task_lock(get_video_lock_key(video_id))


def is_video_locked(video_id: int) -> bool:
    """Return whether the lock of a video is held."""
    return is_task_locked(get_video_lock_key(video_id))
