"""The show: upload videos, publish each many times, and kill a worker in the middle of one."""

from __future__ import annotations

import itertools
import random
import time
from datetime import datetime
from pathlib import Path

from django.conf import settings
from django.core.files import File
from django.utils import timezone

from config.celery import app
from demokit import streams
from demokit.stage import Crew, say, wait
from django_tasklock import get_lock_ttl
from videos import ffmpeg
from videos.locks import get_video_lock_key
from videos.models import Attempt, Skip, Video
from videos.publishing import publish

__all__ = ["Show"]

WORKERS = ("one", "two")
PROCESSES = 2  # of each
TIMES = 10  # messages for each video at the start
PRESS = 3.0  # seconds between one more message for each video and the next, until the kill
KILL_AT = 15  # per cent of the first video, or later: when the other worker has a free process
PATIENCE = 60.0  # seconds without any progress until the demo gives up


class Show:
    """One run, and the facts about it that the database does not have."""

    def __init__(self, crew: Crew) -> None:
        self.crew = crew
        self.lengths: dict[int, float] = {}
        """Seconds of each upload, by video."""
        self.published = 0
        self.killed_at: datetime | None = None
        self.lost: list[Attempt] = []
        """What the killed worker was transcoding."""
        self._told: set[int] = set()  # those of them that run again, as was told

    def run(self, given: Path | None, folder: Path) -> None:
        """Play it with this video, or with samples that are made in ``folder``."""
        for name in WORKERS:
            self._start_worker(name)
        if given is None:
            say("Two workers are starting; meanwhile ffmpeg makes four sample videos.")
        for title in [] if given else streams.SAMPLES:
            self._upload(streams.make(title, folder))
            say(f"“{title}” is made and uploaded.")
        if given:
            self._upload(given)
        wait(self._workers_answer, 60, "Waiting for the workers: each imports Django, then it answers.")
        for _ in range(TIMES):
            self._press()
        say(f"Each is published {TIMES} times, and again every {PRESS:g} s, to two workers.")
        self._transcode()
        self._press()  # a message after the end is skipped as well
        why = (
            f"{self.read()} of {self.published} messages were read. Waiting for the others: each must be accounted for."
        )
        wait(lambda: self.read() >= self.published, PATIENCE, why)

    def read(self) -> int:
        """Return how many messages have come to an end."""
        return Skip.objects.count() + Attempt.objects.exclude(outcome=Attempt.Outcome.RUNNING).count()

    def _start_worker(self, name: str) -> None:
        options = ("--concurrency", str(PROCESSES), "--hostname", f"{name}@%h", "--loglevel", "INFO")
        self.crew.start(name, "-m", "celery", "--app", "config", "worker", *options)

    def _workers_answer(self) -> bool:
        self.crew.check()
        return len(app.control.ping(timeout=1)) == len(WORKERS)

    def _upload(self, path: Path) -> None:
        try:
            length = ffmpeg.probe(path).duration
        except ffmpeg.TranscodeError as error:
            raise SystemExit(f"That cannot be transcoded: {error}") from None
        with path.open("rb") as stream:
            video = Video.objects.create(title=path.stem, upload=File(stream, name=path.name))
        self.lengths[video.pk] = length

    def _press(self) -> None:
        """Press “Process” of every video, in any order."""
        for video_id in random.sample([*self.lengths], len(self.lengths)):
            publish("process_video", video_id=video_id)
            self.published += 1

    def _transcode(self) -> None:
        """Tell how far the videos are, and kill one worker, until all are ready or one has failed."""
        seen, moved = None, 0.0
        for step in itertools.count():
            videos = list(Video.objects.filter(pk__in=self.lengths))
            states = [(video.status, video.progress) for video in videos]
            if states != seen:
                seen, moved = states, time.monotonic()
            if all(video.status == Video.Status.READY for video in videos) or Video.Status.FAILED in dict(states):
                return
            if time.monotonic() - moved > PATIENCE:
                raise SystemExit(f"Nothing has moved for {PATIENCE:g} s. See {self.crew.logs}")
            self.crew.check()
            if self.killed_at is None:
                self._kill_in_mid_transcode(videos[0])
            else:
                self._tell_recovery(self.killed_at)
            if step % round(PRESS / 0.2) == 0:
                busy = [self._how_far(video) for video in videos if video.status != Video.Status.READY]
                say(" | ".join([*busy, f"{len(videos) - len(busy)} ready"]))
                if self.killed_at is None:
                    self._press()
            time.sleep(0.2)

    def _how_far(self, video: Video) -> str:
        if video.status != Video.Status.TRANSCODING:
            return f"{video} {video.get_status_display()}"
        epochs = [attempt.epoch for attempt in self.lost if attempt.video_id == video.pk]
        if video.lock_epoch in epochs:
            ttl = get_lock_ttl(get_video_lock_key(video.pk))
            lock = "its lock is free, its message is still to come" if ttl is None else f"its lock has {ttl:.0f} s left"
            return f"{video} {video.progress} %, where its worker died; {lock}"
        return f"{video} {video.progress} %{' of the next try' if epochs else ''}"

    def _kill_in_mid_transcode(self, victim: Video) -> None:
        """Kill the worker of ``victim`` once it has made progress, and start another one, as a supervisor would."""
        running = Attempt.objects.filter(outcome=Attempt.Outcome.RUNNING).select_related("video")
        mine = running.filter(video=victim).last()
        if mine is None or victim.status != Video.Status.TRANSCODING or victim.progress < KILL_AT:
            return
        if running.exclude(worker=mine.worker).count() == PROCESSES:
            return
        name = mine.worker.partition("@")[0]
        self.crew.kill(name)
        self.killed_at, self.lost = timezone.now(), list(running.filter(worker=mine.worker))
        self._start_worker("three")
        busy = ", ".join(f"“{attempt.video}” ({attempt.video.progress} %)" for attempt in self.lost) or "nothing"
        lease, message_lease = settings.TASKLOCK["LEASE"], settings.TASKLOCK["MESSAGE_LEASE"]
        say(f"kill -9: worker “{name}”, its children and their ffmpeg, in the middle of {busy}.")
        say("    “Process” is not pressed any more: what it had must come back by itself. Waiting for that:")
        say(f"    Nobody renews its locks and permits: they end within {lease:g} s. A lock ends at once for a message")
        say("    that sees, on this machine, that its process is dead. Worker “three” is starting in its place.")
        say(f"    Nobody renews its messages: the living put them back after {message_lease:g} s. (Celery: an hour.)")

    def _tell_recovery(self, killed_at: datetime) -> None:
        for attempt in self.lost:
            again = Attempt.objects.filter(video_id=attempt.video_id, epoch__gt=attempt.epoch).first()
            if again is None or attempt.pk in self._told:
                continue
            self._told.add(attempt.pk)
            whose = "its own message, delivered again" if again.task_id == attempt.task_id else "another message"
            name, seconds = again.worker.partition("@")[0], (again.started_at - killed_at).total_seconds()
            say(f"“{attempt.video}” runs again in worker “{name}”, {seconds:.1f} s after the kill, by {whose}.")
