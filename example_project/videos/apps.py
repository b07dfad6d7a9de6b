"""Wiring of the videos app."""

from __future__ import annotations

from django.apps import AppConfig

__all__ = ["VideosConfig"]


class VideosConfig(AppConfig):
    """The videos app."""

    name = "videos"

    def ready(self) -> None:
        """Count skipped messages, in every process."""
        from videos import skips

        skips.connect()
