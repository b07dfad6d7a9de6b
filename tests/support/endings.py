"""Guarded tasks under way in a site, and what their end must leave behind: nothing that anybody waits for."""

from __future__ import annotations

import time
from itertools import pairwise
from typing import Any

from django_tasklock.celery import parked_messages
from tests.support.celery_site.journal import Event
from tests.support.celery_site.site import Site
from tests.support.celery_workers import Worker
from tests.testapp.models import Video

__all__ = ["KINDS", "LEASE", "PROMPT", "Begun", "begin", "revoke"]

KINDS = ("once_video", "locked_video")
"""The same task as a ``OnceTask`` and decorated, of ``celery_site.ending_tasks``."""
LEASE = 60.0
PROMPT = LEASE / 2
"""Seconds within which a key must be free that need not wait for its lease: mostly it takes 0.2 s, and five where the
pool hears of a dead child by its own look alone."""


class Begun:
    """A message for a row of its own. It ends as ``how`` says, at once or when its ``gate`` is opened."""

    def __init__(self, site: Site, kind: str, how: str, sits: bool, options: dict[str, Any]) -> None:
        self.site, self.kind = site, kind
        self.video = Video.objects.create()
        self.name = f"video:{self.video.pk}"
        self.gate = site.gate() if sits else None
        self.result = site.publish(kind, self.video.pk, how, self.gate, options=options)

    def started(self, number: int = 1) -> Event:
        """Its ``number``-th start."""
        return self.site.started(self.video.pk, number)

    def told(self) -> list[str]:
        """What its body did, in order."""
        return [one.event for one in self.site.events(key=self.video.pk) if one.event != "lives"]

    def row(self) -> str:
        """The state of its row."""
        self.video.refresh_from_db()
        return str(self.video.status)

    def let_go(self) -> None:
        """Open its gate."""
        assert self.gate is not None
        self.gate.open()

    def is_unique(self) -> bool:
        """Whether another one may not be published."""
        return bool(self.site.locks.keys(f"task_lock:unique:*:{self.name}"))

    def unique_for(self) -> float:
        """Seconds until another one may be published, if nothing more is heard of this one."""
        (key,) = self.site.locks.keys(f"task_lock:unique:*:{self.name}")
        return self.site.locks.pttl(key) / 1000

    def renewed(self, times: int) -> None:
        """Until its lock was renewed so often; it does not end before."""
        left = [self.site.locks.pttl(f"task_lock:{self.name}")]

        def so_often() -> bool:
            left.append(self.site.locks.pttl(f"task_lock:{self.name}"))
            assert left[-1] > 0
            return sum(after > before for before, after in pairwise(left)) >= times

        self.site.wait_until(so_often)

    @property
    def state(self) -> str:
        """Of its result, now: an ``AsyncResult`` keeps the first end it hears of."""
        return self.site.result(self.result).state

    def free(self, within: float = PROMPT) -> float:
        """Seconds from the last sign of its body to the moment in which its lock is free, at most ``within``."""
        self.site.wait_until(lambda: self.site.lock(self.name) is None, within)
        now = time.monotonic()
        return now - max((one.time for one in self.site.events(key=self.video.pk)), default=now)

    def left(self, states: str, rows: str, within: float = PROMPT) -> None:
        """It is over: its result and its row are in one of these states, and there is nothing else of it."""
        self.site.wait_until(lambda: self.state in states.split(), 30)
        took = self.free(within)
        assert 0 <= took < within, f"the key was free {took} s after the last sign of its body"
        self.site.wait_until(lambda: not self.is_unique(), within)
        self.site.wait_until(lambda: not parked_messages(self.name), within)
        self.site.wait_until(lambda: self.row() in rows.split(), within)
        assert self.state in states.split()


def begin(site: Site, how: str = "returns", *, sits: bool = False, **options: Any) -> list[Begun]:
    """One of each kind, published with these options of ``apply_async``."""
    return [Begun(site, kind, how, sits, options) for kind in KINDS]


def revoke(site: Site, worker: Worker, task_id: str, **how: Any) -> None:
    """Revoke a message; returns when the worker knows."""
    [answer] = site.app.control.revoke(task_id, destination=[worker.name], reply=True, timeout=30, **how)
    assert "ok" in answer[worker.name], answer
