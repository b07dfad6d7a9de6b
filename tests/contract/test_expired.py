"""A request is told of the leases that it finds ended without a release, each of them once: callers count them."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from django_tasklock.backends.contract.stores import LockStore
from django_tasklock.names import Names
from django_tasklock.types import Busy
from tests.support.permits import clear_permits
from tests.support.stores import an_ask, clear, eventually, granted, make, stores

SHORT = 60  # ms: a lease that is to lapse


@pytest.fixture(params=stores("redis", "database", "memory", "cluster"))
def backend(request: pytest.FixtureRequest) -> Iterator[LockStore]:
    """A backend with an empty store, of those that know."""
    clear(request.param)
    clear_permits(request.param)
    made = make(request.param)
    yield made
    made.close()


def lapse(backend: LockStore, *names: str) -> None:
    for name in names:
        granted(backend.acquire(an_ask(name, ttl=SHORT)))
    eventually(lambda: all(backend.get(name) is None for name in names))


def test_who_takes_a_lapsed_lock_is_told_of_it(backend: LockStore) -> None:
    mine = an_ask("video:1")
    assert granted(backend.acquire(mine)).expired == 0
    backend.release(mine.name, mine.token)
    lapse(backend, "video:1")
    assert granted(backend.acquire(mine)).expired == 1
    assert granted(backend.acquire(mine)).expired == 0
    busy = backend.acquire(an_ask("video:1"))
    assert isinstance(busy, Busy)
    assert busy.expired == 0


def test_one_that_was_released_or_removed_or_swept_has_not_expired(backend: LockStore) -> None:
    for end in (
        lambda token: backend.release("video:1", token),
        lambda token: backend.remove("video:1"),
        lambda token: backend.remove("video:1", token),
    ):
        mine = an_ask("video:1")
        assert granted(backend.acquire(mine)).expired == 0
        end(mine.token)
    lapse(backend, "video:1")
    assert backend.prune(10) == 1
    assert granted(backend.acquire(an_ask("video:1"))).expired == 0


def test_of_several_at_once(backend: LockStore) -> None:
    lapse(backend, "a", "c")
    assert granted(backend.several.acquire(an_ask(Names(("a", "b", "c"))))).expired == 2


def test_a_lock_of_a_dead_holder_that_passes_to_an_earlier_waiter(backend: LockStore) -> None:
    """Whoever asks first is told, whoever gets the lock."""
    if not backend.wakes:
        pytest.skip("who polls stands in no queue")
    granted(backend.acquire(an_ask("video:1", ttl=400)))
    first, second = (backend.waiter(an_ask("video:1")) for _ in range(2))
    with first, second:
        for waiter in (first, second):
            assert isinstance(waiter.acquire(), Busy)
        found = [0]

        def handed() -> bool:
            answer = second.acquire()
            found.append(answer.expired)
            assert isinstance(answer, Busy), "the other one came first"
            record = backend.get("video:1")
            return record is not None and record.token == first.request.token

        eventually(handed)
        assert granted(first.acquire()).expired == 0
        assert sum(found) == 1


def test_permits(backend: LockStore) -> None:
    requests = [an_ask("transcode", limit=3, ttl=SHORT) for number in range(2)]
    found = [granted(backend.permits.acquire(request)).expired for request in requests]
    time.sleep(2 * SHORT / 1000)  # no look: where reading drops them, nobody is told
    found += [granted(backend.permits.acquire(an_ask("transcode", limit=3))).expired for _ in range(3)]
    assert sum(found) == 2, "a slow machine notices the first one earlier"
    assert found[-2:] == [0, 0]
