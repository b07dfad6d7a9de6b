"""After the show, with ``SERVE=1``: something to look at on the operators' pages."""

from __future__ import annotations

from django.core.management import call_command

from demokit.stage import Crew, say, wait
from django_tasklock import get_lock_info, is_task_locked
from django_tasklock.celery import count_parked
from videos.tasks import add_chapter

__all__ = ["prepare"]

HOLD = """
import time
from django_tasklock import TaskLock
with TaskLock({name!r}, lease={lease}, blocking=True) as lock:
    while True:
        lock.ensure_held()  # raises once an operator asks for the lock, or takes it
        time.sleep(1)
"""


CALL = """
from concurrent.futures import ThreadPoolExecutor
from django_tasklock import RateLimiter
def call(number):
    while True:
        RateLimiter("catalogue").acquire()
with ThreadPoolExecutor(4) as pool:
    list(pool.map(call, range(4)))
"""


def prepare(crew: Crew, video_id: int) -> None:
    """Leave a lock with waiters and parked messages, a used-up rate limit, a run of the sweep, and a dead holder."""
    chapters, nightly = f"chapters:{video_id}", ("nightly-import", "nightly-export")

    def start(who: str, code: str) -> None:
        crew.start(who, "manage.py", "shell", "--verbosity", "0", "--command", code)

    def hold(who: str, name: str, lease: int = 60) -> None:
        start(who, HOLD.format(name=name, lease=lease))

    def prepared() -> bool:
        info = get_lock_info(chapters)
        return info is not None and info.waiting == 2 and count_parked(chapters) == 3

    say(f"Something to look at: an editor has the lock “{chapters}”, two more wait for it, three chapters queue.")
    say("    A fourth process calls the catalogue as often as its limit allows.")
    say("    Two nightly jobs are killed whose locks have a lease of an hour; a sweep frees that of the first.")
    hold("editor", chapters)
    start("caller", CALL)
    for job in nightly:
        hold(job, job, lease=3600)
    ready = wait(lambda: all(map(is_task_locked, (chapters, *nightly))), 60, "Waiting until they have their locks.")
    for editor in ("second editor", "third editor"):
        hold(editor, chapters)
    for number in range(1, 4):
        add_chapter.delay(video_id=video_id, title=f"Bonus {number}")
    crew.kill("nightly-import")
    call_command("sweep_locks")
    crew.kill("nightly-export")
    if not ready or not wait(prepared, 60, "Waiting until the editors wait, and the workers have parked the chapters."):
        raise SystemExit(f"Not all of that is there: see {crew.logs}")
