"""Three ways to process a row once: ours, redis-py's ``Lock``, and the ``cache.add`` of Celery's cookbook.

Each is written as its own documentation shows it. A *session* is one run of a body: it reads the row and writes to it
a few times, and at the end it says that the row is done.
"""

from __future__ import annotations

import contextlib
import os
import random
import time
from collections.abc import Callable
from typing import Any

import redis
from django.core.cache import cache
from django.db import InterfaceError, OperationalError

from django_tasklock import BackendUnavailable, StaleClaim, StateGuard, current_claim, model_lock
from tests.faults import site
from tests.testapp.models import Video

__all__ = ["AWAY", "LEASE", "NAME", "WAYS", "Session"]

LEASE = 2.0
"""Seconds that a lock outlives a holder that died."""
EXPIRE = 60
"""The same for ``cache.add``, whose lock nobody renews, so that it must be more than the longest body takes."""
STEPS = 4
PAUSE = 0.12
"""Seconds at most between what a session reads and what it writes."""
NAME = "fault:{pk}"
GUARD = StateGuard(claim_from=["uploading", "processing"], claim_as="processing", done="ready")
AWAY = (BackendUnavailable, redis.exceptions.RedisError, OperationalError, InterfaceError)
"""What a call may end with while a server is away."""


class Session:
    """One run of a body on one row. ``note``: writes to the journal."""

    def __init__(self, pk: int, name: str, note: Callable[..., None]) -> None:
        self.pk = pk
        self.name = name
        self.note = note

    def work(self, write: Callable[..., object]) -> None:
        """Read, pause, write; each write counts one up from what was just read, so that a lost one can be counted."""
        self.note("begin", self)
        for step in range(STEPS):
            before = Video.objects.get(pk=self.pk).progress
            time.sleep(random.random() * PAUSE)
            write(hls_file=f"{self.name} {step}", progress=before + 1)

    def plainly(self) -> None:
        """Work with writes that ask nobody."""
        row = Video.objects.filter(pk=self.pk)
        if not row.filter(status="ready").exists():
            self.work(row.update)
            row.update(status="ready")

    def release(self, key: str, mine: bytes, release: Callable[[], object]) -> None:
        """Release the lock, and note it if that was another's by now."""
        with redis.Redis.from_url(os.environ[site.STORE]) as store:
            before, left = store.get(key), store.pttl(key)
            release()
            if before is not None and mine not in before and left > 1000 and store.get(key) != before:
                self.note("foreign", self)


def ours(session: Session) -> None:
    """``model_lock``: a lock, and the row as its judge."""
    try:
        skipped = _process(session.pk, session)
    except StaleClaim as error:
        session.note("refused", session, type(error).__name__)
        return
    if skipped is not None and (skipped["reason"], skipped.get("state")) != ("invalid_state", "ready"):
        session.note("skipped", session, skipped["reason"])


@model_lock(Video, NAME, guard=GUARD, pk="pk", lease=LEASE, timeout=60, on_conflict="skip")
def _process(pk: int, session: Session) -> Any:
    claim = current_claim()
    assert claim is not None
    session.work(claim.update)


def redis_py(session: Session) -> None:
    """``redis.lock.Lock``: its token is compared at the release; the row knows nothing of it."""
    key = NAME.format(pk=session.pk)
    with redis.Redis.from_url(os.environ[site.STORE]) as client:
        lock = client.lock(key, timeout=LEASE, blocking=False)
        if not lock.acquire():
            return
        mine = lock.local.token

        def release() -> None:
            with contextlib.suppress(redis.exceptions.LockError):
                lock.release()

        try:
            session.plainly()
        finally:
            session.release(key, mine, release)


def cookbook(session: Session) -> None:
    """``cache.add``, and ``cache.delete`` unless the time is over."""
    key = NAME.format(pk=session.pk)
    ends = time.monotonic() + EXPIRE - 3
    if not cache.add(key, session.name, EXPIRE):
        return
    try:
        session.plainly()
    finally:
        if time.monotonic() < ends:
            session.release(cache.make_key(key), session.name.encode(), lambda: cache.delete(key))


WAYS: dict[str, Callable[[Session], None]] = {
    "django_tasklock": ours,
    "redis-py Lock": redis_py,
    "cache.add": cookbook,
}
