"""The demo: upload videos, publish each many times, kill a worker, and watch the result."""

from __future__ import annotations

import contextlib
import random
import secrets
import sys
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from django.contrib.auth import get_user_model
from django.core.files import File
from django.core.management import call_command
from django.utils import timezone

from demokit import calls, samples, verdict
from demokit.crew import Crew, wait_until
from demokit.facts import Facts
from demokit.screen import Screen
from tests.support.redis_server import free_port
from videos import ffmpeg
from videos.models import Attempt, Skip, Video
from videos.tasks import process_video

__all__ = ["Show"]

WORKERS = ("one", "two")
SLOTS = 2  # tasks at a time in each worker
TIMES = 10  # messages for each video at the start
CLICK = 2.0  # seconds between one more message for each video and the next
PATIENCE = 60.0  # seconds without any progress until the demo gives up
EARLY, LATE = 15, 45  # percent: when to kill


class Show:
    """One run of the demo, from an empty database to the table."""

    def __init__(self, screen: Screen, crew: Crew, folder: Path) -> None:
        self.screen = screen
        self.crew = crew
        self.folder = folder
        self.facts = Facts()

    def run(self, video: Path | None, serve: bool) -> int:
        """Run; return 0 if each video was transcoded once and the limit was kept. ``serve``: run until Ctrl-C."""
        call_command("migrate", verbosity=0)
        site = self._open_site() if serve else ""
        for name in WORKERS:
            self._start_worker(name)
        files = [video] if video else self._make_samples()
        lengths = self._measure(files)
        self._await_workers()
        videos = [self._upload(path) for path in files]
        self.facts.lengths = dict(zip(videos, lengths, strict=True))
        self._publish(videos * TIMES)
        total = self.facts.published.total()
        self.screen.say(f"Uploaded {len(videos)}, published each {TIMES} times, shuffled: {total} messages.")
        self.screen.say(f"From now on, “Process” is pressed on every video every {CLICK:.0f} s.")
        self._watch(videos)
        self._drain()
        if self.facts.killed:
            logs = {name: self.crew.log(name) for name in WORKERS}
            self.facts.came_back(logs.pop(self.facts.killed), logs.values())
        self.screen.settle()
        right = verdict.give(self.facts)
        self._start_missing()
        right = calls.make(self.screen, videos) and right
        print(f"What the workers said: {self.crew.logs}", flush=True)
        if serve:
            self._stay(site)
        return 0 if right else 1

    def _make_samples(self) -> list[Path]:
        folder = self.folder / "samples"
        folder.mkdir()
        self.screen.say(f"Making {len(samples.SAMPLES)} sample videos with ffmpeg.")
        with ThreadPoolExecutor(2) as pool:
            return list(pool.map(lambda sample: samples.make(sample, folder), samples.SAMPLES))

    def _measure(self, files: list[Path]) -> list[float]:
        try:
            return [ffmpeg.probe(path).duration for path in files]
        except ffmpeg.TranscodeError as error:
            raise SystemExit(f"That cannot be transcoded: {error}") from None

    def _await_workers(self) -> None:
        logs = [self.crew.log(name) for name in WORKERS]
        ready = wait_until(lambda: self.crew.dead() or all(" ready." in log.read_text() for log in logs), 60)
        if not ready or self.crew.dead():
            raise SystemExit(f"The workers do not start: see {self.crew.logs}")
        self.screen.say(f"Two prefork workers of {SLOTS} processes each are ready.")

    def _start_worker(self, name: str) -> None:
        options = ["--pool", "prefork", "--concurrency", str(SLOTS), "--hostname", f"{name}@%h", "--loglevel", "INFO"]
        options += ["--prefetch-multiplier", "4"]  # so that the killed one has messages that it has not begun
        self.crew.start(name, sys.executable, "-m", "celery", "--app", "config", "worker", *options)

    def _upload(self, path: Path) -> int:
        with path.open("rb") as stream:
            video = Video(title=path.stem.replace("-", " ").capitalize(), upload=File(stream, name=path.name))
            video.save()
        return video.pk

    def _publish(self, video_ids: Iterable[int]) -> None:
        messages = list(video_ids)
        random.shuffle(messages)
        for video_id in messages:
            process_video.delay(video_id=video_id)
            self.facts.published[video_id] += 1

    def _watch(self, video_ids: list[int]) -> None:
        """Show progress, publish again, and kill once, until all videos are ready or a transcode failed."""
        clicked = moved = time.monotonic()
        seen: list[tuple[str, int, str]] = []
        recovered: set[int] = set()
        while True:
            videos = list(Video.objects.filter(pk__in=video_ids))
            rows = [(video.title, video.progress, str(video.get_status_display())) for video in videos]
            self.screen.progress(rows)
            now = time.monotonic()
            if rows != seen:
                seen, moved = rows, now
            if self.facts.killed_at is None:
                self._kill_in_mid_transcode(videos[0])
            self._report_recovery(recovered)
            if all(video.status == Video.Status.READY for video in videos):
                self._publish(video_ids)  # a message after the end is skipped as well
                return
            if self._went_wrong():
                return
            if dead := self.crew.dead():
                raise SystemExit(f"Ended by itself: {', '.join(dead)}. See {self.crew.logs}")
            if now - moved > PATIENCE:
                raise SystemExit(f"Nothing has moved for {PATIENCE:.0f} s. See {self.crew.logs}")
            if now - clicked >= CLICK:
                clicked = now
                self._publish(video_ids)
            time.sleep(0.2)

    def _went_wrong(self) -> bool:
        """Return whether the demo has failed already: a video was transcoded twice, or a transcode failed."""
        ended = list(Attempt.objects.exclude(outcome=Attempt.Outcome.RUNNING))
        return len({attempt.video_id for attempt in ended if attempt.outcome == Attempt.Outcome.PUBLISHED}) < len(ended)

    def _kill_in_mid_transcode(self, victim: Video) -> None:
        """Kill the worker of ``victim`` once it has made progress and another worker has a free slot."""
        running = Attempt.objects.filter(outcome=Attempt.Outcome.RUNNING)
        mine = running.filter(video=victim).last()
        if mine is None or victim.status != Video.Status.TRANSCODING or victim.progress < EARLY:
            return
        if victim.progress < LATE and running.exclude(worker=mine.worker).count() >= SLOTS:
            return
        name = mine.worker.partition("@")[0]
        self.crew.kill(name)
        self.facts.killed, self.facts.killed_at = name, timezone.now()
        self.facts.lost = list(running.filter(worker=mine.worker).select_related("video"))
        busy = ", ".join(f"“{attempt.video}” ({attempt.video.progress} %)" for attempt in self.facts.lost)
        self.screen.say(
            f"kill -9: worker “{name}”, its children and their ffmpeg, in the middle of {busy or 'nothing'}."
        )

    def _report_recovery(self, reported: set[int]) -> None:
        for attempt in self.facts.lost:
            seconds = self.facts.recovered_after(attempt.video_id)
            if seconds is not None and attempt.video_id not in reported:
                reported.add(attempt.video_id)
                self.screen.say(f"“{attempt.video}” was claimed again {seconds:.1f} s after the kill.")

    def _drain(self) -> None:
        """Wait until the workers have read all messages, so that the table accounts for each."""
        before: tuple[int, ...] = ()

        def settled() -> bool:
            nonlocal before
            waiting, held = self.facts.unread()
            done = Skip.objects.count() + Attempt.objects.exclude(outcome=Attempt.Outcome.RUNNING).count()
            last, before = before, (waiting, held, done)
            return not (waiting or held) and done >= self.facts.published.total() and before == last

        wait_until(settled, 30, pause=1)  # what the killed worker had comes back within the lease of a message

    def _open_site(self) -> str:
        password = secrets.token_urlsafe(9)
        get_user_model().objects.create_superuser("demo", "", password)
        address = f"127.0.0.1:{free_port()}"
        self.crew.start("site", sys.executable, "manage.py", "runserver", "--noreload", address)
        site = f"http://{address}/  admin: http://{address}/admin/  login: demo  password: {password}"
        self.screen.say(f"The site: {site}")
        return site

    def _start_missing(self) -> None:
        for name in WORKERS:
            if name not in self.crew.running:
                self._start_worker(name)

    def _stay(self, site: str) -> None:
        print(f"\nThe site stays up: {site}\nCtrl-C stops everything.", flush=True)
        with contextlib.suppress(KeyboardInterrupt):
            while not self.crew.dead():
                time.sleep(0.5)
            raise SystemExit(f"Ended by itself: {', '.join(self.crew.dead())}. See {self.crew.logs}")
