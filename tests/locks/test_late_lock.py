"""Policy ``run``: a body that began in an outage has its lock as soon as the store answers, if nobody else has it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest
import redis

from django_tasklock import LockLost, TaskLock, model_lock, signals
from django_tasklock.backends import get_backend
from django_tasklock.backends.redis import RedisBackend
from django_tasklock.locks.heartbeat import heartbeat
from django_tasklock.types import Grant, Released, monotonic
from tests.support.guards import GUARD, heard
from tests.support.proxy import Proxy
from tests.support.stores import an_ask, eventually, granted, new_token
from tests.support.twins import token_in
from tests.testapp.models import Video

pytest_plugins = ["tests.support.redis_fixtures"]
pytestmark = pytest.mark.redis


@pytest.fixture
def down(proxy: Proxy, configure: Any) -> Iterator[Proxy]:
    """The store is down from the start, and bodies run."""
    configure(LOCATION=proxy.url, ON_UNAVAILABLE="run")
    proxy.refuse()
    yield proxy
    proxy.heal()


def test_it_is_a_lock_like_any_other_once_the_store_is_back(down: Proxy, store: redis.Redis, name: str) -> None:
    lock = TaskLock(name, timeout=60, on_unavailable="run")
    began = time.monotonic()
    assert lock.acquire()
    assert not lock.held
    assert lock.fence == 0
    down.heal()
    eventually(lambda: lock.held)
    waited = time.monotonic() - began
    assert token_in(store, name) == lock.token
    assert lock.fence > 0
    assert 60_000 - 1000 * waited - 1500 <= 1000 * lock.time_left <= 60_000  # counted from when it was asked for
    store.pexpire(f"task_lock:{name}", 20_000)
    lease = lock.require_lease()
    lease.renew_at = monotonic()
    heartbeat.follow(lease)
    eventually(lambda: store.pttl(f"task_lock:{name}") > 20_000)  # renewed
    assert lock.release() is Released.RELEASED
    assert not store.exists(f"task_lock:{name}")


def test_if_another_holder_has_the_lock_after_the_outage_the_body_loses_it(
    down: Proxy, store: redis.Redis, stranger: RedisBackend, name: str, warnings_logged: Any
) -> None:
    reasons: list[str] = []
    lock = TaskLock(name, timeout=60, on_unavailable="run", on_lost=reasons.append)
    assert lock.acquire()
    with pytest.raises(LockLost, match="is not held: the store could not be asked"):
        lock.ensure_held()
    assert not lock.lost
    token = new_token()
    granted(stranger.acquire(an_ask(name, token)))
    with heard(signals.lock_lost, name) as received:
        down.heal()
        eventually(lambda: received)  # on_lost comes first
    assert [said["reason"] for said in received] == reasons
    assert any("a body runs without it" in line for line in warnings_logged())
    assert not heartbeat.reconciler.pending
    assert (lock.held, lock.lost) == (False, True)
    with pytest.raises(LockLost, match="a body runs without it"):
        lock.ensure_held()
    assert lock.release() is Released.GONE
    assert token_in(store, name) == token


def test_what_ends_while_its_lock_is_taken_leaves_none_behind(
    down: Proxy, store: redis.Redis, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock, backend, outcomes = TaskLock(name, on_unavailable="run"), get_backend(), []
    acquire = backend.acquire

    def then_release(ask: Any) -> Any:
        answer = acquire(ask)
        if isinstance(answer, Grant):
            outcomes.append(lock.release())
        return answer

    monkeypatch.setattr(backend, "acquire", then_release)  # before the heartbeat asks: that may last until it heals
    assert lock.acquire()
    down.heal()
    eventually(lambda: outcomes, 30)
    assert outcomes == [Released.GONE]
    eventually(lambda: not store.exists(f"task_lock:{name}"))


@pytest.mark.django_db(transaction=True)
def test_the_row_and_the_lock_have_one_token(down: Proxy, store: redis.Redis, name: str) -> None:
    """So nobody takes the row for one that was left behind."""

    @model_lock(Video, name, pk="pk", guard=GUARD)
    def work(pk: int) -> str:
        down.heal()
        eventually(lambda: token_in(store, name))
        return str(Video.objects.get(pk=pk).lock_token)

    video = Video.objects.create()
    token = work(video.pk)
    assert len(token) == 32
    video.refresh_from_db()
    assert (video.status, video.lock_token, video.lock_epoch) == ("ready", "", 1)
