"""One claim in several threads of a body: each has a connection of its own, and each write is conditional."""

from __future__ import annotations

import contextvars
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import pytest
from django.db import connections
from django.db.models import F

from django_tasklock import (
    Claim,
    ConcurrencyLimiter,
    StaleClaim,
    TaskLockError,
    current_claim,
    current_limiter,
    current_lock,
    model_lock,
)
from tests.support.guards import GUARD, MEMORY, elsewhere, new_token, raw_connection, states
from tests.testapp.models import Video

T = TypeVar("T")

THREADS = 4
WRITES = 5
pytestmark = [pytest.mark.database, pytest.mark.django_db(transaction=True)]


@pytest.fixture(autouse=True)
def _locks_in_memory(settings: Any) -> None:
    settings.TASKLOCK = MEMORY


def in_threads(work: Callable[[], T]) -> list[T]:
    """What ``work()`` returns in several threads that begin together."""
    barrier = threading.Barrier(THREADS, timeout=60)

    def run() -> T:
        barrier.wait()
        try:
            return work()
        finally:
            connections.close_all()

    with ThreadPoolExecutor(THREADS) as pool:
        parts = [pool.submit(run) for _ in range(THREADS)]
        return [part.result(120) for part in parts]


def test_every_write_arrives_by_its_threads_own_connection():
    video = Video.objects.create()
    claim = Claim.take(Video, video.pk, GUARD, new_token())

    def write() -> Any:
        for _ in range(WRITES):
            claim.update(progress=F("progress") + 1)
        return raw_connection()

    used = in_threads(write)
    assert len({id(one) for one in [*used, raw_connection()]}) == THREADS + 1
    assert states(video) == ("processing", THREADS * WRITES, 1)
    claim.finish()
    assert states(video)[0] == "ready"


def test_every_write_of_an_overtaken_claim_is_refused():
    video = Video.objects.create()
    claim = Claim.take(Video, video.pk, GUARD, new_token())
    Claim.take(Video, video.pk, GUARD, new_token())

    def write() -> bool:
        with pytest.raises(StaleClaim):
            claim.update(progress=50)
        return claim.valid

    assert in_threads(write) == [False] * THREADS
    assert states(video) == ("processing", 0, 2)


@pytest.mark.parametrize("current", [current_claim, current_lock, current_limiter])
def test_contexts_do_not_follow_into_threads(current):
    """The error says so there, and what to do; outside of every body it says only where to ask."""
    video = Video.objects.create()

    @model_lock(Video, "video:{pk}", guard=GUARD)
    def work(pk: int) -> None:
        with ConcurrencyLimiter("transcode", 1):
            with pytest.raises(TaskLockError, match=r"no \w+ is current here.* pass the \w+ .*copy_context\(\)\.run"):
                elsewhere(current)
            context = contextvars.copy_context()
            assert elsewhere(lambda: context.run(current)) is current()

    work(video.pk)
    with pytest.raises(TaskLockError, match=r"no \w+ is current here") as caught:
        current()
    assert "copy_context" not in str(caught.value)
