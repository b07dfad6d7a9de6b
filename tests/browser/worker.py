"""Runs inside the example: calls a function below for each line, a JSON array of its name and arguments.

``["claim", 1]`` starts to work on a video, as the site's task does; ``["write", 1, 40]`` has that work write its
progress to the row; ``["end", 1]`` ends it. Each answer is one line of JSON; what goes wrong is answered by the name of
the exception, and its traceback is on stderr.
"""

from __future__ import annotations

import contextlib
import io
import json
import queue
import sys
import threading
import time
import traceback
from collections.abc import Callable
from typing import Any

import django

django.setup()

from django.conf import settings  # noqa: E402
from django.contrib.auth import BACKEND_SESSION_KEY, HASH_SESSION_KEY, SESSION_KEY  # noqa: E402
from django.contrib.auth.models import Permission, User  # noqa: E402
from django.contrib.sessions.backends.db import SessionStore  # noqa: E402
from django.core.management import ManagementUtility, call_command  # noqa: E402
from django.utils import timezone  # noqa: E402

from django_tasklock import RateLimiter, current_claim  # noqa: E402
from django_tasklock.backends.database.names import key_of  # noqa: E402
from django_tasklock.models import AuditEntry, EventCount, ParkedMessage  # noqa: E402
from django_tasklock.operations import Actor, sweep  # noqa: E402
from videos.models import Video  # noqa: E402
from videos.tasks import process_video, video_lock  # noqa: E402

MAY = ("view_lock", "release_lock", "view_ratelimit", "change_ratelimit", "view_video", "change_video",
       "view_parkedmessage", "change_parkedmessage", "view_auditentry")  # fmt: skip


def prepare(videos: int) -> str:
    """Make tables, videos that wait, and an operator; the key of his session."""
    call_command("migrate", verbosity=0)
    user = User.objects.create(username="operator", is_staff=True)
    user.user_permissions.set(Permission.objects.filter(codename__in=MAY))
    session = SessionStore()
    session[SESSION_KEY] = str(user.pk)
    session[BACKEND_SESSION_KEY] = settings.AUTHENTICATION_BACKENDS[0]
    session[HASH_SESSION_KEY] = user.get_session_auth_hash()
    session.save()
    Video.objects.bulk_create(Video(title=f"Video {n + 1}", upload="uploads/none.mp4") for n in range(videos))
    return str(session.session_key)


def manage(*arguments: str) -> tuple[int, str, str]:
    """As ``manage.py`` would, without the second that it takes to start; exit status, output and errors."""
    out, err, code = io.StringIO(), io.StringIO(), 0
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            ManagementUtility(["manage.py", *arguments]).execute()
        except SystemExit as end:
            code = int(end.code or 0)
    return code, out.getvalue(), err.getvalue()


def publish(*videos: int) -> None:
    """Publish the site's task for each."""
    for pk in videos:
        process_video.delay(video_id=pk)


class Job:
    """Work on a video in a thread of its own."""

    def __init__(self, pk: int) -> None:
        self._orders: queue.Queue[int | None] = queue.Queue()
        self._answers: queue.Queue[Any] = queue.Queue()
        self._thread = threading.Thread(target=lambda: self._answers.put(attempt(work, pk, self)), daemon=True)
        self._thread.start()

    def serve(self) -> str:
        """Say that it has begun, and write until it is to end."""
        self._answers.put("holds")
        for progress in iter(self._orders.get, None):
            self._answers.put(attempt(current_claim().update, progress=progress) or "done")
        return "ended"

    def answer(self) -> Any:
        """What has come of it."""
        return self._answers.get(timeout=30)

    def tell(self, progress: int | None) -> Any:
        """Write that progress, or end; what has come of it."""
        self._orders.put(progress)
        return self.answer()


@video_lock
def work(video_id: int, job: Job) -> str:
    """Under the lock, with the row claimed."""
    return job.serve()


jobs: dict[int, Job] = {}


def claim(pk: int) -> Any:
    """``holds``, or what the decorator returned."""
    job = Job(pk)
    answer = job.answer()
    if answer == "holds":
        jobs[pk] = job
    return answer


def write(pk: int, progress: int) -> Any:
    """``done``, or why not."""
    return jobs[pk].tell(progress)


def end(pk: int) -> Any:
    """``ended``, or why not."""
    return jobs.pop(pk).tell(None)


def rest() -> None:
    """End all work."""
    for pk in tuple(jobs):
        end(pk)


def furnish(long: str) -> None:
    """Messages, an audit trail, a run of the sweep, limits, and a day that was counted, for pages to show."""
    now = int(time.time() * 1000)

    def row(n: int, name: str, **more: Any) -> ParkedMessage:
        known = {"mode": "queue", "state": "parked", "task": "videos.tasks.transcode", "task_id": f"t-{n}"}
        known |= {"message": json.dumps({"name": name}), "parked_at": now - 7_200_000 + n * 100, "changed_at": now}
        return ParkedMessage(key=key_of(name), name=name, number=n, **{**known, **more})

    ParkedMessage.objects.bulk_create([
        row(1, "video:1"), row(2, "video:2", state="promoted"), row(4, long, mode="coalesce"),
        row(5, "video:3", state="dead", problem="NotRegistered('videos.tasks.gone')", attempts=8),
        row(6, "video:4", task="videos.tasks.a_task_with_a_long_name_" * 3)])  # fmt: skip
    AuditEntry.objects.bulk_create(
        AuditEntry(
            at=timezone.now(), actor="ann", action=act, key=key_of(name), name=name, reason=why, outcome="released"
        )
        for act, name, why in [
            ("release", "video:1", "the worker was unplugged"),
            ("ask", long, "a deploy"),
            ("reset_limit", "tavily", "a new key"),
            ("discard", "video:9", "x" * 300),
        ]
    )
    sweep(by=Actor("task django_tasklock.tasks.sweep_locks"), pause=0)
    hour = now // 3_600_000 * 3600
    EventCount.objects.all().delete()
    EventCount.objects.bulk_create(
        EventCount(hour=hour - ago * 3600, event=event, kind="video:{id}", bucket=0, number=number, milliseconds=0)
        for ago in range(24)
        for event, number in (("acquired", 200), ("waited", 20), ("conflict:skip", 12))
    )
    limiter = RateLimiter("tavily", "3/h", "100/d", tenants="2/m")
    for _ in range(5):
        limiter.reserve()
    limiter.tenant("acme").reserve()
    RateLimiter("openai", "60/m").penalize(3600)


def attempt(act: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
    """What it returned, or the name of the exception."""
    try:
        return act(*arguments, **named)
    except Exception as error:
        traceback.print_exc()
        return type(error).__name__


if __name__ == "__main__":
    for line in sys.stdin:
        verb, *given = json.loads(line)
        print(json.dumps(attempt(globals()[verb], *given)), flush=True)
