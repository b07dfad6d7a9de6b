"""Several locks at once, above every store: all of them, or none."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator

import pytest

from django_tasklock.backends.contract.stores import LockStore
from django_tasklock.exceptions import BackendUnavailable
from django_tasklock.names import Names
from django_tasklock.types import AcquireRequest, Busy, Released, Renewal, RenewalResult
from tests.support.stores import ALL, BEYOND, an_ask, be_patient, clear, eventually, granted, make, new_token, stores

THREE = Names(("a", "b", "c"))


@pytest.fixture(params=stores("memory"))
def backend(request, monkeypatch) -> Iterator[LockStore]:
    """A backend with an empty store. One is as good as another for rules that are above them."""
    be_patient(monkeypatch)
    clear(request.param)
    backend = make(request.param)
    yield backend
    backend.close_idle()
    backend.close()


on_each = pytest.mark.parametrize("backend", stores(*ALL, *BEYOND), indirect=True)


def ask(**terms: object) -> AcquireRequest:
    """A request for three, by a new holder."""
    return an_ask(THREE, **terms)


def held(backend: LockStore) -> list[str | None]:
    """Whose they are, by token."""
    return [None if record is None else record.token for record in map(backend.get, THREE.each)]


@on_each
def test_all_are_granted_or_none(backend):
    """Each is a lock of its own to whoever asks for it alone, and the one that is busy is named."""
    mine, other = ask(ttl=5000, hold=9000), an_ask("b", ttl=5000, holder='{"host":"web1"}')
    grant = granted(backend.several.acquire(mine))
    assert grant.ttl == 5000
    assert held(backend) == [mine.token] * 3
    assert max(record.fence for record in map(backend.get, THREE.each)) == grant.fence
    assert granted(backend.several.acquire(mine)) == grant  # its answer was lost
    for name in THREE.each:
        assert isinstance(backend.acquire(an_ask(name)), Busy)
    assert backend.several.release(THREE, mine.token) is Released.RELEASED
    assert held(backend) == [None] * 3
    assert granted(backend.acquire(other)).fence
    busy = backend.several.acquire(ask())
    assert isinstance(busy, Busy)
    assert (busy.name, busy.record.name, busy.record.token) == ("b", "b", other.token)
    assert busy.record.holder.host == "web1"
    assert 0 < busy.remaining <= 5000
    assert held(backend) == [None, other.token, None]
    after = mine._replace(supersedes=other.token, token=new_token())
    assert granted(backend.several.acquire(after)).fence > grant.fence
    assert held(backend) == [after.token] * 3


@on_each
def test_held_together_and_lost_if_one_is(backend):
    several, other = backend.several, an_ask("z")
    mine = ask(ttl=5000, hold=6000)
    granted(several.acquire(mine))
    granted(backend.acquire(other))
    assert several.extend(THREE, mine.token, 50_000, 90_000) is True
    batch = [Renewal(mine.name, mine.token, 50_000), Renewal("z", other.token, 50_000)]
    assert several.renew(batch) == [RenewalResult.RENEWED] * 2
    assert several.get_held(THREE, mine.token).token == mine.token
    backend.ask_release("c", mine.token)
    assert several.renew(batch) == [RenewalResult.ASKED, RenewalResult.RENEWED]
    assert several.get_held(THREE, mine.token).asked
    backend.remove("b")
    assert several.get_held(THREE, mine.token) is None
    assert several.extend(THREE, mine.token, 50_000, 90_000) is False
    assert several.renew(batch) == [RenewalResult.LOST, RenewalResult.RENEWED]
    stranger = an_ask("b")
    granted(backend.acquire(stranger))
    assert several.get_held(THREE, mine.token).token == stranger.token
    assert several.release(THREE, mine.token) is Released.NOT_YOURS
    assert held(backend) == [None, stranger.token, None]
    assert several.release(THREE, mine.token) is Released.GONE


def test_a_waiter_holds_none_of_them_until_it_has_all(backend):
    first, last, mine = an_ask("a"), an_ask("c"), ask()
    granted(backend.acquire(first))
    granted(backend.acquire(last))
    with backend.several.waiter(mine) as waiter:
        for busy, other in (("a", first), ("c", last)):
            assert waiter.acquire().name == busy
            assert waiter.wait(0.01) is None
            assert mine.token not in held(backend)
            backend.release(busy, other.token)
        granted(waiter.acquire())
    assert held(backend) == [mine.token] * 3


@pytest.mark.parametrize("taken", ["a", "c"])
def test_a_token_that_has_some_of_them_loses_them_with_the_others(backend, taken):
    """As when an answer was lost, and one of the leases has passed to another holder before it is asked again."""
    mine, other = ask(), an_ask(taken)
    granted(backend.several.acquire(mine))
    backend.remove(taken)
    granted(backend.acquire(other))
    assert backend.several.acquire(mine).name == taken
    assert held(backend) == [other.token if name == taken else None for name in THREE.each]


@pytest.mark.parametrize(("down_at", "doubt"), [("a", False), ("b", True)])
def test_a_store_that_fails_on_the_way_leaves_it_in_doubt(backend, monkeypatch, down_at, doubt):
    acquire = backend.acquire

    def take(request: AcquireRequest) -> object:
        if request.name == down_at:
            raise BackendUnavailable("down", doubt=False)
        return acquire(request)

    monkeypatch.setattr(backend, "acquire", take)
    with pytest.raises(BackendUnavailable) as caught:
        backend.several.acquire(ask())
    assert caught.value.doubt is doubt


@pytest.mark.parametrize("backend", stores("redis"), indirect=True)
def test_a_coroutine_that_is_cancelled_on_the_way_gives_all_back(backend, monkeypatch):
    """The thread still finishes, and then releases what it was granted."""
    acquire, reached, go_on = backend.acquire, threading.Event(), threading.Event()
    ended = threading.Event()

    def take(request: AcquireRequest) -> object:
        if request.name == "b":
            reached.set()
            assert go_on.wait(20)
        answer = acquire(request)
        if request.name == "c":
            ended.set()
        return answer

    monkeypatch.setattr(backend, "acquire", take)

    async def main() -> None:
        taking = asyncio.ensure_future(backend.several.aacquire(ask()))
        assert await asyncio.to_thread(reached.wait, 20)
        taking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await taking
        go_on.set()

    asyncio.run(asyncio.wait_for(main(), 30))
    assert ended.wait(20)
    eventually(lambda: held(backend) == [None] * 3)


@pytest.mark.parametrize(
    ("told", "whole"),
    [
        (("RENEWED", "ASKED", "RENEWED"), "ASKED"),
        (("RENEWED", "UNKNOWN", "ASKED"), "UNKNOWN"),
        (("UNKNOWN", "LOST", "RENEWED"), "LOST"),
    ],
)
def test_renewed_as_the_worst_of_them(backend, monkeypatch, told, whole):
    """A cluster's node that is silent leaves open what became of the names on it."""
    monkeypatch.setattr(backend, "renew", lambda batch: [RenewalResult[one] for one in told])
    [result] = backend.several.renew([Renewal(THREE, new_token(), 1000)])
    assert result is RenewalResult[whole]
