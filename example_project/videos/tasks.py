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
from django.db.models import Q

from django_tasklock import (
    Claim,
    ReleaseAsked,
    StaleClaim,
    StateGuard,
    concurrency_limited,
    current_claim,
    current_lock,
    model_lock,
    rate_limited,
    release_connections,
)
from django_tasklock.celery import OnceTask
from videos import catalogue
from videos.locks import KEY
from videos.models import MASTER, Attempt, Rendition, Video
from videos.transcoding import SIZES, remove_older, transcode, workspace

__all__ = ["add_chapter", "announce", "process_video", "video_lock"]

logger = logging.getLogger(__name__)

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
            transcode(Path(video.upload.path), part, on_progress)
        except OSError as error:  # a full disk may be less full in a minute; a broken file stays broken
            raise self.retry(exc=error) from error
        publish(claim, noted, part, home / str(claim.epoch))
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


@shared_task(base=OnceTask, key="chapters:{video_id}", on_conflict="queue", on_unavailable="raise")
def add_chapter(video_id: int, title: str) -> None:
    """Append a chapter to those of a video: every one, one after the other, in the order of publication.

    A message that finds another one at work is parked in the database, where it needs no worker slot.
    """
    with (Path(settings.MEDIA_ROOT) / f"chapters-{video_id}.txt").open("a") as file:
        file.write(f"{title}\n")


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


def publish(claim: Claim, noted: Attempt, part: Path, place: Path) -> None:
    """Rename the finished files into place, and write the path to the row, and the rows of its renditions.

    All or nothing, and only while the claim is valid: ``StaleClaim`` leaves neither rows nor files.
    """
    shutil.rmtree(place, ignore_errors=True)  # only there if the database was replaced and the media kept
    part.rename(place)
    try:
        with claim.transaction():
            Rendition.objects.filter(video_id=noted.video_id).delete()
            Rendition.objects.bulk_create(Rendition(video_id=noted.video_id, height=height) for height, _ in SIZES)
            Attempt.objects.filter(pk=noted.pk).update(outcome=Attempt.Outcome.PUBLISHED)
            master = (place / MASTER).relative_to(settings.MEDIA_ROOT).as_posix()
            claim.update(status=Video.Status.READY, progress=100, hls_file=master)
    except BaseException:
        shutil.rmtree(place, ignore_errors=True)
        raise
