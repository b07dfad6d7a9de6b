"""An operator asks for a lock: its holder hears of it, and ends when it can."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from django_tasklock import TaskLock, current_lock, model_lock, signals
from django_tasklock.backends import get_backend
from django_tasklock.exceptions import ReleaseAsked
from django_tasklock.operations import Actor, Outcome, acts, ask_release, get_lock
from tests.support.guards import GUARD, heard
from tests.support.public import in_store
from tests.support.stores import an_ask, eventually, granted, stores
from tests.testapp.models import Video

pytestmark = pytest.mark.django_db(transaction=True)

BY = Actor("somebody")


@pytest.fixture(params=stores("redis"))
def store(request, settings) -> Iterator[str]:
    """The name of the store in force, empty."""
    yield from in_store(request.param, settings)


@model_lock(Video, "video:{pk}", pk="pk", guard=GUARD)
def work(pk: int, raises: tuple[Exception, ...] | None) -> None:
    """Is asked for its lock, and ends by that: as it is, or in a group as ``asyncio.TaskGroup`` makes them."""
    assert ask_release(f"video:{pk}", by=BY)
    try:
        current_lock().ensure_held()
    except ReleaseAsked as asked:
        if raises is None:
            raise
        raise ExceptionGroup("of the body", [ExceptionGroup("of its part", [asked]), *raises]) from None


def test_the_heartbeat_brings_it(store):
    with heard(signals.lock_asked) as told, TaskLock("video:1", lease=3) as lock:
        assert not lock.asked
        result = ask_release("video:1", by=BY, reason="deploy", fingerprint=get_lock("video:1").lock.info.fingerprint)
        assert (result.outcome, bool(result)) == (Outcome.ASKED, True)
        eventually(lambda: lock.asked)
        eventually(lambda: told)
        assert told[0]["lock"] is lock
        assert lock.held
        with pytest.raises(ReleaseAsked):
            lock.ensure_held()
        shown = get_lock("video:1")
        assert shown.lock.asked_for is not None
        assert any("was asked" in sentence for sentence in shown.explanation)
    assert len(told) == 1
    [act] = acts("video:1")
    assert (act.actor, act.action, act.reason) == ("somebody", "ask", "deploy")
    with TaskLock("video:1", lease=4) as lock:  # whoever comes next is not meant
        assert get_lock("video:1").lock.asked_for is None
        lock.ensure_held()
        assert not lock.asked


@pytest.mark.parametrize("lease", [60, None])
def test_so_does_ensure_held(store, lease):
    with TaskLock("video:1", lease=lease) as lock:
        assert ask_release("video:1", by=BY).outcome is Outcome.ASKED
        with pytest.raises(ReleaseAsked, match="asked to give it back"):
            lock.ensure_held()
        assert lock.asked


def test_in_a_coroutine_it_is_awaited(store):
    async def body() -> None:
        async with TaskLock("video:1", lease=60) as lock:
            ask = an_ask("video:1", lock.token)
            await asyncio.to_thread(get_backend().ask_release, "video:1", ask.token)
            lock.ensure_held()  # blocks no loop to ask the store
            with pytest.raises(ReleaseAsked):
                await lock.aensure_held()

    asyncio.run(body())


def test_the_next_holder_is_not_asked(store):
    first = an_ask("video:1")
    granted(get_backend().acquire(first))
    assert get_backend().remove("video:1", first.token)
    granted(get_backend().acquire(an_ask("video:1")))
    assert get_backend().ask_release("video:1", first.token) is False
    assert get_lock("video:1").lock.asked_for is None
    assert ask_release("video:1", by=BY, fingerprint="0" * 12).outcome is Outcome.CHANGED_HANDS
    assert ask_release("video:2", by=BY).outcome is Outcome.NOT_HELD
    assert acts() == []


@pytest.mark.parametrize("raises", [None, (), (ValueError("no such codec"),)], ids=["itself", "a group", "with others"])
def test_a_guarded_row_is_given_back(store, raises):
    """With errors of its own in the group the body has failed."""
    video = Video.objects.create()
    with pytest.raises(ReleaseAsked if raises is None else ExceptionGroup):
        work(video.pk, raises)
    video.refresh_from_db()
    assert (video.status, video.lock_token) == (GUARD.failed if raises else GUARD.retry, "")
    assert get_lock(f"video:{video.pk}").lock is None
