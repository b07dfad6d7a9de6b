"""Threads that want one row, and threads of one body: each has a connection of its own, and the row judges each."""

from __future__ import annotations

import contextvars
from typing import Any

import pytest
from django.db.models import F

from django_tasklock import (
    ConcurrencyLimiter,
    StaleClaim,
    TaskLockError,
    current_claim,
    current_limiter,
    current_lock,
    model_lock,
)
from tests.support.guards import AGAIN, GUARD, elsewhere, in_threads, raw_connection, states, take
from tests.testapp.models import Note, Video

THREADS = 4
TIMES = 10
pytestmark = [pytest.mark.database, pytest.mark.django_db(transaction=True), pytest.mark.tasklock("memory")]


def test_many_who_claim_one_row_without_any_lock_agree_on_whose_it_is():
    """Gold standard 8.36: whatever became of the lock, the row's claim protects."""
    video = Video.objects.create()

    def claims() -> list[tuple[int, bool]]:
        """The epoch of each claim, and whether what it wrote beside the row was let in."""
        tried = []
        for _ in range(TIMES):
            claim = take(video, AGAIN)
            noted = False
            try:
                claim.update(progress=claim.epoch)
                with claim.transaction():  # the notes are in the order in which they were let in
                    Note.objects.create(video=video, text=str(claim.epoch))
                noted = True
                claim.finish()
            except StaleClaim:
                pass
            tried.append((claim.epoch, noted))
        return tried

    tried = [one for each in in_threads(THREADS, claims) for one in each]
    assert sorted(epoch for epoch, _ in tried) == list(range(1, THREADS * TIMES + 1)), "each has an epoch of its own"
    notes = [int(text) for text in Note.objects.order_by("pk").values_list("text", flat=True)]
    assert notes == sorted(epoch for epoch, noted in tried if noted), "let in in the order of their claims"
    last = THREADS * TIMES
    assert notes[-1] == last, "nobody overtook the last one"
    assert states(video) == ("ready", last, last)


def test_every_write_arrives_by_its_threads_own_connection_until_the_claim_is_overtaken():
    video = Video.objects.create()
    claim = take(video)

    def write() -> Any:
        for _ in range(TIMES):
            claim.update(progress=F("progress") + 1)
        return raw_connection()

    used = in_threads(THREADS, write)
    assert len({id(one) for one in [*used, raw_connection()]}) == THREADS + 1
    assert states(video) == ("processing", THREADS * TIMES, 1)

    take(video)

    def write_late() -> bool:
        with pytest.raises(StaleClaim):
            claim.update(progress=0)
        return claim.valid

    assert in_threads(THREADS, write_late) == [False] * THREADS
    assert states(video) == ("processing", THREADS * TIMES, 2)


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
