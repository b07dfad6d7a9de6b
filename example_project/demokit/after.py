"""After the show, with ``SERVE=1``: something to look at on the operators' pages."""

from __future__ import annotations

from django.core.management import call_command

from demokit.stage import Crew, say, wait
from django_tasklock import is_task_locked
from django_tasklock.celery import count_parked
from videos.tasks import add_chapter

__all__ = ["prepare"]

HOLD = """
import time
from django_tasklock import TaskLock
with TaskLock({name!r}, lease={lease}) as lock:
    while True:
        lock.ensure_held()  # raises once an operator asks for the lock, or takes it
        time.sleep(1)
"""
HOUR = 3600


def prepare(crew: Crew, video_id: int) -> None:
    """Leave a lock with waiters and parked messages, a run of the sweep, and a dead holder."""
    chapters, nightly = f"chapters:{video_id}", ("nightly-import", "nightly-export")
    say("Something to look at: somebody edits the chapters by hand, and two others wait for that;")
    say("        two nightly jobs are killed, whose locks have a lease of an hour; after the first of them, a sweep.")
    for who, name, lease in (("editor", chapters, 60), *((name, name, HOUR) for name in nightly)):
        crew.start(who, "manage.py", "shell", "--verbosity", "0", "--command", HOLD.format(name=name, lease=lease))
    wait(lambda: all(map(is_task_locked, (chapters, *nightly))), 60, "Waiting until they have their locks.")
    for who in ("second editor", "third editor"):
        crew.start(who, "manage.py", "shell", "--verbosity", "0", "--command", HOLD.format(name=chapters, lease=60))
    for number in range(1, 4):
        add_chapter.delay(video_id=video_id, title=f"Bonus {number}")
    crew.kill("nightly-import")
    call_command("sweep_locks")
    crew.kill("nightly-export")
    wait(lambda: count_parked(chapters) == 3, 30, "Waiting until the workers have parked three more chapters.")
