"""The lock of a video for everybody but its task, which has it from its decorator in ``tasks.py``."""

from __future__ import annotations

from django_tasklock import acquire_task_lock, is_task_locked, release_task_lock

__all__ = ["KEY", "acquire_video_lock", "get_video_lock_key", "is_video_locked", "release_video_lock"]

KEY = "video_processing_lock:{video_id}"


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
