"""The table at the end, and the check that it has the expected numbers."""

from __future__ import annotations

import os
from pathlib import Path

from django.conf import settings

from demokit import playlist
from demokit.facts import Facts
from demokit.screen import table
from videos.models import Attempt, Skip, Video
from videos.transcoding import SIZES

__all__ = ["give"]

HEAD = ("video", "published", "transcodes", "interrupted", "skipped", "recovered after", "playlist")


def give(facts: Facts) -> bool:
    """Print the table and its faults; return whether each video was transcoded exactly once, and completely."""
    videos = list(Video.objects.filter(pk__in=facts.lengths))
    print("\n" + table(HEAD, [_row(facts, video) for video in videos]), end="\n\n")
    _account(facts)
    wrong = [f"“{video}” {problem}" for video in videos for problem in _problems(facts, video)]
    if not wrong and not facts.lost:
        wrong.append("No worker was killed in mid-transcode: the video is too short for that.")
    for line in wrong:
        print(f"WRONG  {line}")
    if not wrong:
        print("Every video was transcoded exactly once, and every frame of every rendition can be decoded.")
    return not wrong


def _row(facts: Facts, video: Video) -> tuple[object, ...]:
    seconds = facts.recovered_after(video.pk)
    return (
        video.title,
        facts.published[video.pk],
        _published(video),
        int(facts.lost_of(video.pk) is not None),
        video.skips.count(),
        "-" if seconds is None else f"{seconds:.1f} s",
        os.path.relpath(Path(settings.MEDIA_ROOT) / video.hls_file) if video.hls_file else "none",
    )


def _account(facts: Facts) -> None:
    waiting, held = facts.unread()
    busy, done = (Skip.objects.filter(reason=reason).count() for reason in ("already_processing", "invalid_state"))
    transcodes = Attempt.objects.filter(outcome=Attempt.Outcome.PUBLISHED).count()
    print(f"{facts.published.total()} messages:")
    print(f"  {transcodes:4d} transcoded a video")
    print(f"  {busy:4d} skipped: a worker was at it (the lock)")
    print(f"  {done:4d} skipped: it was done (the guard)")
    print(f"  {facts.back:4d} of these the killed worker had, running or fetched ahead: they went on in the other one")
    if waiting or held:
        print(f"  {waiting + held:4d} still in the queue, or not acknowledged")
    print()


def _problems(facts: Facts, video: Video) -> list[str]:
    found = []
    if (count := _published(video)) != 1:
        found.append(f"was transcoded {count} times")
    lost = facts.lost_of(video.pk)
    others = [attempt for attempt in video.attempts.exclude(outcome=Attempt.Outcome.PUBLISHED) if attempt != lost]
    found += [f"was tried once too often: {other}" for other in others]
    seconds = facts.recovered_after(video.pk)
    if lost and seconds is None:
        found.append("was not taken up again after the kill")
    if seconds is not None and seconds < 0:
        found.append("was claimed by a second worker while the first was alive")
    if video.status != Video.Status.READY or not video.hls_file:
        return [*found, f"is {video.status}, not ready"]
    home = Path(settings.MEDIA_ROOT) / "videos" / str(video.pk)
    places = sorted(entry.name for entry in home.iterdir())
    if places != [str(video.lock_epoch)]:
        found.append(f"left more behind than its stream: {', '.join(places)}")
    return found + playlist.problems(Path(settings.MEDIA_ROOT) / video.hls_file, facts.lengths[video.pk], len(SIZES))


def _published(video: Video) -> int:
    return video.attempts.filter(outcome=Attempt.Outcome.PUBLISHED).count()
