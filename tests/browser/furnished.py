"""Something of everything for the pages to show: locks and who waits, beside what ``worker.furnish`` makes."""

from __future__ import annotations

import json
import secrets

from django_tasklock.types import AcquireRequest
from tests.browser.example import Example
from tests.support.sweeping import dead_holder

__all__ = ["LONG", "VIDEO", "furnish", "queue"]

VIDEO = "video_processing_lock:1"
LONG = "a-lock-with-a-name-that-has-no-end:" + "andgoeson" * 18


def holder(**more: object) -> str:
    """Somebody far away, as he says of himself."""
    return json.dumps({"host": "far-away", "pid": 12, "task": "videos.tasks.report", **more}, separators=(",", ":"))


def furnish(site: Example) -> None:
    """Put it there."""
    site.worker("furnish", LONG)  # first: its sweep would put the rest right
    assert site.worker("claim", 1) == "holds"
    site.lock(LONG, seconds=100_000, lease=60, task="a.module.with.a.long.path.tasks.a_task_with_a_long_name" * 2)
    site.lock("video:1", seconds=3600)
    site.lock("dead", seconds=3600, **json.loads(dead_holder()))
    site.lock("unending", task="")
    site.client.persist("task_lock:unending")
    site.lock("ends-soon", lease=5)
    site.lock("lapsed", seconds=0.05, lease=0.05)
    for _ in range(2):
        request = AcquireRequest("transcode", secrets.token_hex(16), 60_000, 600_000, holder(limit=3), limit=3)
        site.store.permits.acquire(request)


def queue(site: Example) -> None:
    """Two wait for the same lock: whoever waits looks again within seconds, or the queue forgets it."""
    for n in range(2):
        request = AcquireRequest("video:1", f"{n:032d}", 60_000, 60_000, holder(boot=f"b{n}", task_id=f"w-{n}"))
        site.store.waiter(request).acquire()
