"""The tasks of the site. Publish ``process_video`` as often as you like, ``announce`` as fast as you like."""

from __future__ import annotations

import logging
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from celery import Task, shared_task
from django.conf import settings
from django.utils import timezone

from django_tasklock import (
    Claim,
    StaleClaim,
    concurrency_limited,
    current_claim,
    current_lock,
    rate_limited,
    release_connections,
)
from django_tasklock.exceptions import ReleaseAsked
from videos import catalogue
from videos.locks import video_lock
from videos.models import Attempt, Rendition, Video
from videos.transcoding import MASTER, THUMBNAIL, Stream, remove_older, transcode, workspace

__all__ = ["announce", "process_video"]

logger = logging.getLogger(__name__)


@shared_task(
    bind=True,
    max_retries=3,
    default_retry_delay=60,
    acks_late=True,
    reject_on_worker_lost=True,
    throws=(ReleaseAsked, StaleClaim),  # expected ends: one line in the log, no traceback
)
@video_lock
@concurrency_limited("transcode", 3, timeout=7200, on_conflict="wait")
def process_video(self: Task, video_id: int) -> dict[str, object]:
    """Make the HLS stream and the thumbnail of a video, once.

    A message for a video that is busy or done returns ``{"status": "skipped", ...}``
    without entering this body. At most three are transcoded at a time, over all workers.
    """
    claim, lock = current_claim(), current_lock()
    video = Video.objects.get(pk=video_id)
    home = Path(settings.MEDIA_ROOT) / "videos" / str(video_id)

    def on_progress(percent: int) -> None:
        if lock.asked:  # an operator asks for the lock: end this run, the row can be claimed again
            lock.ensure_held()
        claim.update(progress=percent)

    with attempt(self, video_id, claim) as noted, workspace(home, claim.epoch) as part:
        claim.update(status=Video.Status.TRANSCODING, progress=0)
        release_connections()
        try:
            stream = transcode(Path(video.upload.path), part, on_progress)
        except OSError as error:  # a full disk may be less full in a minute; a broken file stays broken
            raise self.retry(exc=error) from error
        Attempt.objects.filter(pk=noted.pk).update(transcoded_at=timezone.now())
        publish(claim, noted, stream, part, home / str(claim.epoch))
        remove_older(home, claim.epoch)
    logger.info("video %s is ready: %s", video_id, home / str(claim.epoch) / MASTER)
    return {"status": "success", "video_id": video_id}


@shared_task
@rate_limited("catalogue")
def announce(video_id: int) -> None:
    """Report a video to the catalogue, never more often than it allows for all workers together.

    A call that has to wait for more than a second frees its worker slot.
    """
    catalogue.tell(video_id)


@contextmanager
def attempt(task: Task, video_id: int, claim: Claim) -> Iterator[Attempt]:
    """Record that the transcoder runs, and a failure. ``publish`` records success."""
    request = task.request
    noted = Attempt.objects.create(
        video_id=video_id,
        epoch=claim.epoch,
        worker=request.hostname or "",
        pid=os.getpid(),
        task_id=request.id or "",
    )
    try:
        yield noted
    except BaseException as error:
        stale = isinstance(error, StaleClaim)
        outcome = Attempt.Outcome.OVERTAKEN if stale else Attempt.Outcome.FAILED
        Attempt.objects.filter(pk=noted.pk).update(outcome=outcome)
        raise


def publish(claim: Claim, noted: Attempt, stream: Stream, part: Path, place: Path) -> None:
    """Rename the finished files into place, and write their paths to the row and its renditions.

    All or nothing, and only while the claim is valid: ``StaleClaim`` leaves neither rows nor files.
    """
    url = place.relative_to(settings.MEDIA_ROOT).as_posix()
    shutil.rmtree(place, ignore_errors=True)  # only there if the database was replaced and the media kept
    part.rename(place)
    try:
        with claim.transaction():
            Rendition.objects.filter(video_id=noted.video_id).delete()
            Rendition.objects.bulk_create(
                Rendition(
                    video_id=noted.video_id,
                    width=variant.width,
                    height=variant.height,
                    bandwidth=variant.bandwidth,
                    playlist=f"{url}/{variant.playlist}",
                )
                for variant in stream.variants
            )
            Attempt.objects.filter(pk=noted.pk).update(outcome=Attempt.Outcome.PUBLISHED)
            claim.update(
                status=Video.Status.READY,
                progress=100,
                duration=stream.duration,
                hls_file=f"{url}/{MASTER}",
                thumbnail=f"{url}/{THUMBNAIL}",
            )
    except BaseException:
        shutil.rmtree(place, ignore_errors=True)
        raise
