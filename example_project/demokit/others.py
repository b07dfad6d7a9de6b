"""The other tasks: an API that may not be called too often, and messages that run in their order."""

from __future__ import annotations

from bisect import bisect_left
from pathlib import Path

from django.conf import settings

from demokit.stage import say, wait
from videos import catalogue
from videos.publishing import publish
from videos.tasks import add_chapter

__all__ = ["add_chapters", "call_api", "worst"]

STOPPED = 0.25  # seconds for which a process may be paused between its turn and its record


def call_api(video_id: int, limit: int, window: float) -> list[str]:
    """Publish more calls at once than the API allows; return the faults."""
    wanted = limit * 3 // 2
    say(f"{wanted} calls at once of an API that allows {limit} in {window:g} s. (Bare Celery: all of them now.)")
    for _ in range(wanted):
        publish("announce", video_id=video_id)
    made = wait(lambda: len(catalogue.calls()) >= wanted, 30, "Waiting for the last: each has booked its turn.")
    most = worst(catalogue.calls(), window - STOPPED)
    say(f"{len(catalogue.calls())} calls were made, {most} at most in any {window:g} s.")
    return (
        []
        if made and most <= limit
        else [f"The API was called {most} times in {window:g} s, or some calls are missing"]
    )


def worst(times: list[float], window: float) -> int:
    """Return the most calls in any window of ``window`` seconds."""
    return max((bisect_left(times, first + window) - index for index, first in enumerate(times)), default=0)


def add_chapters(video_id: int) -> list[str]:
    """Publish tasks that queue for one lock; return the faults."""
    file = Path(settings.MEDIA_ROOT) / f"chapters-{video_id}.txt"
    file.touch()
    titles = [f"Chapter {number}" for number in range(1, 21)]
    say(f"{len(titles)} tasks at once that append a line to one file each. (Bare Celery: in any order.)")
    for title in titles:
        add_chapter.delay(video_id=video_id, title=title)
    why = "Waiting for the last: what finds another at work is parked in the database, in the order of publication."
    wait(lambda: len(file.read_text().splitlines()) >= len(titles), 30, why)
    right = file.read_text().splitlines() == titles
    say(f"The lines are {'' if right else 'not '}those that were published, in their order.")
    return [] if right else [f"Lines are missing, or not in order: {file}"]
