"""The example's Celery app, with a transcoder that works until a file is there. ``celery -A tests.browser.transcoder``.

Each percent is a fenced write to the row, as with ffmpeg; only the pictures are missing.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import django
from django.conf import settings

from config.celery import app

__all__ = ["DONE", "app"]

DONE = "done"
"""The file in the data directory that ends all transcodes."""

django.setup()

from videos import tasks  # noqa: E402
from videos.models import MASTER  # noqa: E402


def transcode(source: Path, target: Path, on_progress: Callable[[int], None]) -> None:
    """As slow as the test wants it to be."""
    percent = 0
    while not (Path(settings.DATA_DIR) / DONE).exists():
        percent = percent % 99 + 1
        on_progress(percent)
        time.sleep(0.05)
    (target / MASTER).write_text("#EXTM3U\n")


tasks.transcode = transcode
