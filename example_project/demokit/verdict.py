"""The table at the end, and the check that each video was transcoded exactly once, and completely."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from django.conf import settings

from demokit import streams
from demokit.show import Show
from demokit.stage import say
from videos.models import Attempt, Skip, Video

__all__ = ["give"]

PUBLISHED = Attempt.Outcome.PUBLISHED


def give(show: Show) -> list[str]:
    """Print the table, and return the faults."""
    say("Judging: every frame of every stream is decoded.")
    faults = []
    print(f"\n{'video':<26} {'killed':>6} {'transcoded':>10} {'skipped':>7}  stream")
    for video in Video.objects.filter(pk__in=show.lengths):
        killed = sum(attempt.video_id == video.pk for attempt in show.lost)
        done = video.attempts.filter(outcome=PUBLISHED).count()
        found = list(_faults(show, video, done))
        print(f"{video.title[:26]:<26} {killed:6} {done:10} {video.skips.count():7}  {video.hls_file}", flush=True)
        faults += [f"“{video}” {fault}" for fault in found]
    if not show.lost:
        faults.append("No worker was killed in mid-transcode: the video is too short for that.")
    if show.read() < show.published:
        faults.append(f"{show.published - show.read()} messages were lost.")
    done = Attempt.objects.filter(outcome=PUBLISHED).count()
    busy = Skip.objects.filter(reason="already_processing").count()
    print(
        f"\n{show.published} messages: {done} transcoded a video, {busy} found a worker at it (the lock),"
        f" {Skip.objects.count() - busy} found it done (the guard).\n"
        f"(Bare Celery: {show.published} transcodes, of one video in several processes at once;"
        " what the dead worker had, lost or an hour late.)\n"
    )
    return faults


def _faults(show: Show, video: Video, done: int) -> Iterator[str]:
    if done != 1:
        yield f"was transcoded {done} times"
    for attempt in video.attempts.exclude(outcome=PUBLISHED):
        if attempt not in show.lost:
            yield f"was tried once too often: {attempt}"
        elif video.attempts.filter(epoch__gt=attempt.epoch, started_at__lt=show.killed_at).exists():
            yield "was claimed by a second worker while the first was alive"
    if video.status != Video.Status.READY or not video.hls_file:
        yield f"is {video.status}, not ready"
        return
    master = Path(settings.MEDIA_ROOT) / video.hls_file
    places = {entry.name for entry in master.parent.parent.iterdir()}
    if places != {str(video.lock_epoch)}:
        yield f"left more behind than its stream: {', '.join(places)}"
    yield from streams.faults(master, show.lengths[video.pk])
